"""The files of reproductions: checked where they enter, and those that are shipped."""

import functools
from typing import Any

import pytest
import torch

from plumbline import data
from plumbline.data.files import DataError
from plumbline.experiments import RunSpec, recipes
from plumbline.experiments.loading import load_data
from plumbline.experiments.papers import PublishedFile, merged, names, read
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.running import started
from plumbline.experiments.studies import STUDIES
from plumbline.experiments.studies.benchmark import BenchmarkPart
from plumbline.experiments.studies.comparison import BESIDE, BEST

ROOT = recipes.folder() / "papers"
SHIPPED = names()
COSTS = ("privacy cost", "excessive risk")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        pytest.param(
            '[[rows]]\nrow = "a"\nvalues = { time = 1.0 }', "no tolerance for time", id="t"
        ),
        pytest.param('[[claims]]\nsays = "nothing"', "neither 'above' nor 'times'", id="claim"),
        pytest.param('[[rows]]\nrow = "a"\nvalue = { loss = 1.0 }', "value", id="field"),
        pytest.param("[[rows]", "not valid TOML", id="toml"),
    ],
)
def test_files_are_checked_where_they_enter(judged: Any, wrong: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says) as refused:
        judged(wrong, {})
    assert "small.published.toml" in str(refused.value)


def test_quick_changes_tables_within_tables() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": [1, 2]}
    changed = merged(base, {"a": {"c": {"d": 3}}, "e": [4]})
    assert changed == {"a": {"b": 1, "c": {"d": 3}}, "e": [4]}
    assert base["e"] == [1, 2]


def test_options_go_with_the_name_that_has_them() -> None:
    base = {"model": {"name": "resnet-20", "options": {"enhanced": False}, "centre": 1.0}}
    small = merged(base, {"model": {"name": "image-mlp"}})
    assert small == {"model": {"name": "image-mlp", "centre": 1.0}}
    same = merged(base, {"model": {"options": {"elu": True}}})
    assert same["model"]["options"] == {"enhanced": False, "elu": True}


def keys_of(published: PublishedFile) -> set[str]:
    stated = {f"{row.row} / {metric}" for row in published.rows for metric in row.values}
    return stated | {key for claim in published.claims for key in claim.keys}


def recipe_of(settings: dict[str, Any]) -> Recipe | None:
    """The recipe of a reproduction, if it has one."""
    if "recipe" in settings:
        return Recipe.of(settings["recipe"])
    if "budget" not in settings:
        return None
    return Recipe.of({key: value for key, value in settings.items() if key not in BESIDE})


def test_every_table_and_figure_is_there() -> None:
    tables = {f"004-table-{number}" for number in range(1, 6)}
    figures = {f"004-figures-{data}" for data in ("adult", "dutch", "mnist", "celeba")}
    others = {"000-figure-2-cifar10", "000-figure-2-fashion-mnist", "000-figure-3"}
    others |= {"001-examples", "001-symmetry-mnist", "001-symmetry-cifar10", "002-figure-4"}
    others |= {"000-table-1", "002-table-2", "002-table-2-mnist", "003-tables", "003-figure-5"}
    others |= {"beyond-fashion-mnist", "beyond-imdb"}
    assert tables | figures | others | {"002-table-4", "004-figure-5"} <= set(SHIPPED)
    stems = {path.name.removesuffix(".toml") for path in ROOT.glob("*.toml")}
    assert stems == {name + ending for name in SHIPPED for ending in ("", ".published")}


# The short titles that the recipes cite, by the first part of a recipe's name.
PAPERS = {
    "000": "Bias-Aware Minimisation",
    "001": "Geometric Perspective",
    "002": "Sharpness-Aware Training",
    "003": "Clipping Bias Reduction",
    "004": "Gradient Misalignment",
    "bey": "Beyond the papers",
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_can_be_read_at_every_size(name: str) -> None:
    plan, published = read(name)
    assert plan.study in STUDIES
    assert {"quick", "paper"} <= set(plan.minutes)
    assert published.source.startswith(PAPERS[name[:3]] + " (")
    assert published.claims
    for size in plan.minutes:
        recipe = recipe_of(plan.at(size))
        if recipe is not None:
            assert recipe.name == (plan.same_runs or name)
    if published.reference is not None:
        assert published.reference in {row.row for row in published.rows}


@pytest.mark.parametrize("name", SHIPPED)
def test_published_rows_and_claims_are_about_rows_of_the_recipe(name: str) -> None:
    plan, published = read(name)
    keys = keys_of(published)
    if plan.study == "comparison":
        recipe = recipe_of(plan.settings)
        assert recipe is not None
        labels = {row.base + row.place for row in recipe.rows if row.origin != "tuned"}
        places = {"", *(f", epsilon {one:g}" for one in recipe.epsilons)}
        labels |= {f"{row.base}{BEST}{place}" for row in recipe.methods for place in places}
        probed = recipe.probe.measure if recipe.probe else ()
        metrics = {
            "accuracy",
            "loss",
            "error reduction",
            *COSTS,
            *(f"{cost} gap" for cost in COSTS),
            *probed,
        }
        for key in keys:
            row, metric, *_ = key.split(" / ")
            assert row in labels
            assert metric in metrics
        if any("cost" in key or "risk" in key for key in keys if "excessive_risk" not in key):
            assert "nonprivate" in {row.name for row in recipe.methods}
    elif plan.study == "benchmark":
        part = BenchmarkPart.model_validate(plan.settings)
        made = {f"{m} / step time / {column}" for m in part.methods for column in part.models}
        assert keys <= made


@functools.cache
def groups_of(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    try:
        return data.load(name, **dict(options)).groups
    except DataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", [one for one in SHIPPED if one.startswith("004")])
def test_published_groups_are_the_data_sets_own(name: str) -> None:
    plan, published = read(name)
    recipe = recipe_of(plan.settings)
    assert recipe is not None
    groups = groups_of(recipe.data.name, tuple(recipe.data.options.items()))
    assert set(plan.settings.get("pair", ())) <= set(groups)
    for key in keys_of(published):
        _, metric, *rest = key.split(" / ")
        if metric in ("accuracy", "loss", *COSTS):
            assert rest[0] in groups
        elif metric == "excessive_risk":
            assert rest[0] in groups
            assert rest[1] in ("direction", "magnitude", "noise", "clip")
        elif metric == "progress":
            assert rest[0] in ("loss_by_group", "gradient_norm_by_group")
            assert rest[1] in groups


@pytest.mark.parametrize("name", ["004-table-4", "004-table-5"])
def test_the_tables_of_paper_004_are_complete(name: str) -> None:
    """Rows of ten numbers, without the costs of the first; and their own arithmetic.

    One of the rows is there twice, once for each of two settings.
    """
    plan, published = read(name)
    assert [len(row.values) for row in published.rows] == [4, 10, 10, 10, 10, 10, 10]
    assert len({tuple(row.values.items()) for row in published.rows}) == 6
    assert len(plan.settings["seeds"]) == 5
    base = published.rows[0].values
    for row in published.rows[1:]:
        for group in ("male", "female"):
            lost = base[f"accuracy / {group}"] - row.values[f"accuracy / {group}"]
            assert row.values[f"privacy cost / {group}"] == pytest.approx(lost, abs=0.21)
            more = row.values[f"loss / {group}"] - base[f"loss / {group}"]
            assert row.values[f"excessive risk / {group}"] == pytest.approx(more, abs=0.021)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_every_run_of_a_recipe_takes_its_first_steps(name: str) -> None:
    """On the real data, with its network and its methods, at the quick size."""
    plan, _ = read(name)
    recipe = recipe_of(plan.at("quick"))
    if recipe is None:
        return
    for method in recipe.methods:
        spec = RunSpec(recipe, method, recipe.seeds[0])
        private = started(spec, load_data(spec))
        for batch in private:
            private.step(batch)
            if private.steps_done == 2:
                break
        private.close()
        assert private.made == 2
        assert all(torch.isfinite(one).all() for one in private.parameters().values())
