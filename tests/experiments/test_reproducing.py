"""Published numbers beside ours: the machinery, every verdict, and the files that are shipped."""

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from plumbline import data
from plumbline.data.files import DataError
from plumbline.experiments import reproducing
from plumbline.experiments.probing import ALONG
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.reproducing import (
    Claim,
    PublishedFile,
    Reproduction,
    ReproductionFile,
    Verdict,
    merged,
    names,
    reproduce,
)
from plumbline.experiments.studies import STUDIES, Measured, Measurements
from plumbline.experiments.studies.benchmark import BenchmarkPart

PLAN = """
title = "A small table"
study = "fake"
settings = { rows = { a = 1 }, seeds = [0, 1, 2] }
quick = { seeds = [0] }
minutes = { quick = 0.1, paper = 0.2 }
"""
HEAD = """
source = "A paper, Table 0"
notes = ["A note of the paper's."]
reference = "base"
tolerance = { accuracy = 1.0, loss = 0.1 }
"""


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of reproductions."""
    monkeypatch.setattr(reproducing, "recipes_folder", lambda: tmp_path / "recipes")
    (tmp_path / "recipes" / "papers").mkdir(parents=True)
    return tmp_path / "recipes" / "papers"


@pytest.fixture
def judged(papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judges measurements that are given against a published file that is given."""

    def judge(
        published: str, paper: dict[str, float], tuned: dict[str, float] | None = None
    ) -> Reproduction:
        def fake(settings: dict[str, Any], folder: Path, *_: Any) -> Measurements:
            columns = [
                {key: Measured(value) for key, value in column.items()}
                for column in (paper, tuned or {})
            ]
            return Measurements(columns[0], columns[1], (f"seeds {settings['seeds']}",))

        monkeypatch.setitem(STUDIES, "fake", fake)
        (papers / "small.toml").write_text(PLAN)
        (papers / "small.published.toml").write_text(HEAD + published)
        return reproduce("small", "quick", tmp_path / "runs")

    return judge


ROWS = """
[[rows]]
row = "base"
values = { "accuracy / a" = 70.0, loss = 0.8 }
[[rows]]
row = "new"
values = { "accuracy / a" = 80.0, loss = 0.4 }
"""
NEAR = {"base / accuracy / a": 70.9, "base / loss": 0.75}
NEAR_NEW = {"new / accuracy / a": 80.0, "new / loss": 0.4}


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        pytest.param(
            {"new / accuracy / a": 79.0, "new / loss": 0.5}, Verdict.REPRODUCED, id="near"
        ),
        pytest.param({"new / accuracy / a": 75.0, "new / loss": 0.6}, Verdict.DIRECTION, id="side"),
        pytest.param({"new / accuracy / a": 69.0, "new / loss": 0.4}, Verdict.NOT, id="other side"),
        pytest.param({"new / accuracy / a": 80.0}, Verdict.MISSING, id="one is missing"),
        pytest.param(
            {"new / accuracy / a": 80.0, "new / loss": float("nan")},
            Verdict.MISSING,
            id="undefined",
        ),
    ],
)
def test_verdicts_of_rows(judged: Any, ours: dict[str, float], verdict: Verdict) -> None:
    found = judged(ROWS, NEAR | ours)
    assert found.rows == {"base": Verdict.REPRODUCED, "new": verdict}


def test_a_reference_row_that_is_far_has_no_direction(judged: Any) -> None:
    found = judged(ROWS, {"base / accuracy / a": 60.0, "base / loss": 0.8, **NEAR_NEW})
    assert found.rows == {"base": Verdict.NOT, "new": Verdict.REPRODUCED}


def test_without_the_reference_there_is_no_direction(judged: Any) -> None:
    found = judged(ROWS, {"new / accuracy / a": 75.0, "new / loss": 0.4})
    assert found.rows == {"base": Verdict.MISSING, "new": Verdict.NOT}


def test_what_was_published_as_equal_has_no_direction(judged: Any) -> None:
    """Within the tolerance of the reference: no side to be on, and no verdict against the row."""
    rows = ROWS.replace("loss = 0.4", "loss = 0.85")
    found = judged(rows, NEAR | {"new / accuracy / a": 75.0, "new / loss": 0.6})
    assert found.rows["new"] is Verdict.DIRECTION


CLAIM = """
[[claims]]
says = "new beats base"
above = [["new / accuracy", "base / accuracy", 5.0], [1.0, "new / loss", 0.0]]
times = [["base / loss", "new / loss", 2.0]]
"""
HOLDS = {"new / accuracy": 80.0, "base / accuracy": 70.0, "new / loss": 0.3, "base / loss": 0.8}


@pytest.mark.parametrize(
    ("paper", "tuned", "verdict"),
    [
        pytest.param(HOLDS, {}, Verdict.REPRODUCED, id="holds"),
        pytest.param(HOLDS, HOLDS, Verdict.REPRODUCED, id="holds when tuned too"),
        pytest.param(HOLDS, {"new / loss": 2.0}, Verdict.REPRODUCED, id="not all was tuned"),
        pytest.param(HOLDS, HOLDS | {"base / accuracy": 79.0}, Verdict.TUNING, id="tuning"),
        pytest.param(HOLDS | {"base / accuracy": 79.0}, {}, Verdict.DIRECTION, id="less above"),
        pytest.param(HOLDS | {"base / loss": 0.4}, {}, Verdict.DIRECTION, id="less often"),
        pytest.param(
            HOLDS | {"base / loss": 0.4}, HOLDS | {"base / loss": 0.2}, Verdict.TUNING, id="both"
        ),
        pytest.param(HOLDS | {"base / accuracy": 81.0}, {}, Verdict.NOT, id="does not hold"),
        pytest.param(HOLDS | {"base / loss": 0.2}, HOLDS, Verdict.NOT, id="holds when tuned only"),
        pytest.param(HOLDS | {"new / loss": 1.5}, {}, Verdict.NOT, id="above a number"),
        pytest.param({"new / accuracy": 80.0}, {}, Verdict.MISSING, id="missing"),
        pytest.param(HOLDS | {"new / loss": float("nan")}, HOLDS, Verdict.MISSING, id="undefined"),
    ],
)
def test_verdicts_of_claims(
    judged: Any, paper: dict[str, float], tuned: dict[str, float], verdict: Verdict
) -> None:
    (claim,) = judged(CLAIM, paper, tuned).claims
    assert (claim.what, claim.verdict) == ("new beats base", verdict)


def test_comparable_means_not_much_below(judged: Any) -> None:
    claims = """
[[claims]]
says = "no worse by more than one"
above = [["a / loss", "b / loss", -1.0]]
"""
    for other, verdict in ((2.9, Verdict.REPRODUCED), (3.1, Verdict.NOT)):
        (claim,) = judged(claims, {"a / loss": 2.0, "b / loss": other}).claims
        assert claim.verdict is verdict


def test_a_claim_about_differences(judged: Any) -> None:
    claims = """
[[claims]]
says = "a's gap is larger"
above = [["a / x minus a / y", "b / x minus b / y", 1.0]]
"""
    values = {"a / x": 5.0, "a / y": 2.0, "b / x": 4.0, "b / y": 2.5}
    (claim,) = judged(claims, values).claims
    assert claim.verdict is Verdict.REPRODUCED
    assert Claim(says="", above=(("a / x minus a / y", 1.0, 0.0),)).keys == ("a / x", "a / y")


def test_the_page_has_all_of_it(judged: Any, tmp_path: Path) -> None:
    claim = '[[claims]]\nsays = "new is slow"\nabove = [["new / time", 2.0, 1.0]]\n'
    found = judged(
        ROWS + CLAIM + claim,
        {**HOLDS, **NEAR, **NEAR_NEW, "new / time": 3.0, "new / readings": 5.0},
        {"new / loss": 0.35},
    )
    text = str(found)
    assert "readings" not in text  # no claim is about them; the runs have them
    assert (tmp_path / "runs" / "small-quick" / "reproduction.md").read_text() == text
    for line in (
        "## A small table",
        "A paper, Table 0. Size: quick. Command: `plumbline reproduce small --size quick`.",
        "| new / loss | 0.4 | 0.4 | 0.35 |",
        "| new | reproduced |",
        "| new beats base | reproduced in direction only |",
        "| new / time | 3 |  |",
        "- A note of the paper's.",
        "- seeds [0]",
    ):
        assert line in text.splitlines()


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


def test_names_are_known_or_refused(judged: Any, papers: Path, tmp_path: Path) -> None:
    judged(ROWS, NEAR)
    assert names() == ["small"]
    with pytest.raises(RecipeError, match="Did you mean 'small'"):
        reproduce("smal")
    with pytest.raises(RecipeError, match="size is 'large'"):
        reproduce("small", "large")  # type: ignore[arg-type]
    (papers / "small.toml").write_text(PLAN.replace("fake", "comparisons"))
    with pytest.raises(RecipeError, match="Did you mean 'comparison'"):
        reproduce("small", folder=tmp_path)


def test_quick_changes_tables_within_tables() -> None:
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": [1, 2]}
    changed = merged(base, {"a": {"c": {"d": 3}}, "e": [4]})
    assert changed == {"a": {"b": 1, "c": {"d": 3}}, "e": [4]}
    assert base["e"] == [1, 2]


SMALL = """
title = "Small Adult"
study = "comparison"
minutes = { quick = 0.1, paper = 0.1 }
[settings]
name = "small"
seeds = [0, 1]
log_every = 100
data = { name = "adult" }
model = { name = "adult-mlp", options = { hidden = 8 } }
budget = { noise_multiplier = 1.0, delta = 1e-6, steps = 4, expected_batch_size = 64 }
optimizer = { learning_rate = 0.1 }
probe = { every = 2, records = 32, measure = ["progress", "excessive_risk"] }
[[settings.methods]]
name = "nonprivate"
origin = "paper"
[[settings.methods]]
name = "dpsgd"
label = "DPSGD"
origin = "paper"
[[settings.methods]]
name = "dpsgd"
label = "DPSGD"
origin = "tuned"
learning_rate = 1.0
[quick]
seeds = [0]
"""
SMALL_PUBLISHED = """
source = "Nowhere"
[tolerance]
accuracy = 100.0
loss = 10.0
"privacy cost gap" = 100.0
[[rows]]
row = "DPSGD"
values = { "accuracy / male" = 50.0, "privacy cost gap" = 1.0, "loss / female" = 1.0 }
[[claims]]
says = "there is a gradient"
above = [["DPSGD / progress / gradient_norm_by_group / male", 0.0, 0.0]]
[[claims]]
says = "there is noise"
above = [["DPSGD / excessive_risk / female / noise", -1.0, 0.0]]
"""


def test_a_small_table_end_to_end(papers: Path, tmp_path: Path) -> None:
    (papers / "small.toml").write_text(SMALL)
    (papers / "small.published.toml").write_text(SMALL_PUBLISHED)
    found = reproduce("small", "paper", tmp_path / "runs", workers=1)
    assert found.rows == {"DPSGD": Verdict.REPRODUCED}
    assert [claim.verdict for claim in found.claims] == [Verdict.REPRODUCED] * 2
    paper, tuned = found.measurements.paper, found.measurements.tuned
    assert "nonprivate / accuracy / female" in paper
    assert not any(key.startswith("nonprivate") for key in tuned)
    assert not any("records" in key or "step" in key for key in paper)
    for line in found.values:
        assert line.ours is not None
        assert line.tuned is not None
        assert len(line.ours.folders) == 2
        for folder in line.ours.folders:
            assert (tmp_path / "runs" / "small-paper" / folder / "result.json").is_file()
    gap, costs = (
        paper["DPSGD / privacy cost gap"],
        [paper[f"DPSGD / privacy cost / {group}"].mean for group in ("male", "female")],
    )
    assert gap.mean == pytest.approx(abs(costs[0] - costs[1]))
    # Again: nothing is repeated.
    before = sorted((tmp_path / "runs").rglob("result.json"))
    times = [path.stat().st_mtime_ns for path in before]
    again = reproduce("small", "paper", tmp_path / "runs", workers=1)
    assert str(again) == str(found)
    assert [path.stat().st_mtime_ns for path in before] == times
    quick = reproduce("small", "quick", tmp_path / "runs", workers=1)
    assert len(quick.values[0].ours.folders) == 1  # type: ignore[union-attr]


# The files that are shipped.

ROOT = reproducing.recipes_folder() / "papers"
SHIPPED = names()
COSTS = ("privacy cost", "excessive risk")


def files(name: str) -> tuple[ReproductionFile, PublishedFile]:
    plan, published = (
        tomllib.loads((ROOT / f"{name}{ending}").read_text("utf-8"))
        for ending in (".toml", ".published.toml")
    )
    return ReproductionFile.model_validate(plan), PublishedFile.model_validate(published)


def keys_of(published: PublishedFile) -> set[str]:
    stated = {f"{row.row} / {metric}" for row in published.rows for metric in row.values}
    return stated | {key for claim in published.claims for key in claim.keys}


def recipe_of(settings: dict[str, Any]) -> Recipe | None:
    """The recipe of a reproduction, if it has one."""
    if "recipe" in settings:
        return Recipe.of(settings["recipe"])
    if "budget" not in settings:
        return None
    return Recipe.of({key: value for key, value in settings.items() if key != "pair"})


def test_every_table_and_figure_is_there() -> None:
    tables = {f"004-table-{number}" for number in range(1, 6)}
    figures = {f"004-figures-{data}" for data in ("adult", "dutch", "mnist", "celeba")}
    others = {"000-figure-2-cifar10", "000-figure-2-fashion-mnist", "000-figure-3"}
    others |= {"001-examples", "001-symmetry-mnist", "001-symmetry-cifar10", "002-figure-4"}
    assert tables | figures | others | {"002-table-4", "004-figure-5"} <= set(SHIPPED)
    stems = {path.name.removesuffix(".toml") for path in ROOT.glob("*.toml")}
    assert stems == {name + ending for name in SHIPPED for ending in ("", ".published")}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_can_be_read_at_both_sizes(name: str) -> None:
    plan, published = files(name)
    assert plan.study in STUDIES
    assert set(plan.minutes) == {"quick", "paper"}
    assert name.startswith(published.source.split()[1])
    assert published.claims
    for size in ("quick", "paper"):
        recipe = recipe_of(plan.at(size))  # type: ignore[arg-type]
        if recipe is not None:
            assert recipe.name == name
            assert set(recipe.probe.measure if recipe.probe else ()) <= set(ALONG)
    if published.reference is not None:
        assert published.reference in {row.row for row in published.rows}


@pytest.mark.parametrize("name", SHIPPED)
def test_published_rows_and_claims_are_about_rows_of_the_recipe(name: str) -> None:
    plan, published = files(name)
    keys = keys_of(published)
    if plan.study == "comparison":
        recipe = recipe_of(plan.settings)
        assert recipe is not None
        labels = {row.label or row.name for row in recipe.methods if row.origin != "tuned"}
        probed = recipe.probe.measure if recipe.probe else ()
        metrics = {"accuracy", "loss", *COSTS, *(f"{cost} gap" for cost in COSTS), *probed}
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
    plan, published = files(name)
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
    """Six rows of ten numbers, without the costs of the first; and their own arithmetic."""
    plan, published = files(name)
    assert [len(row.values) for row in published.rows] == [4, 10, 10, 10, 10, 10]
    assert len(plan.settings["seeds"]) == 5
    base = published.rows[0].values
    for row in published.rows[1:]:
        for group in ("male", "female"):
            lost = base[f"accuracy / {group}"] - row.values[f"accuracy / {group}"]
            assert row.values[f"privacy cost / {group}"] == pytest.approx(lost, abs=0.21)
            more = row.values[f"loss / {group}"] - base[f"loss / {group}"]
            assert row.values[f"excessive risk / {group}"] == pytest.approx(more, abs=0.021)


@pytest.mark.parametrize("name", [one for one in SHIPPED if one.startswith("004-table")])
def test_every_claim_of_paper_004s_tables_holds_of_its_own_numbers(name: str) -> None:
    """At the full threshold; but for the one claim of the text that Table 5 contradicts."""
    _, published = files(name)
    own = {
        f"{row.row} / {metric}": Measured(value)
        for row in published.rows
        for metric, value in row.values.items()
    }
    for claim in published.claims:
        verdict = reproducing._claim_verdict(claim, Measurements(own))
        if name == "004-table-5" and claim.says.startswith(
            "DPSGD-Global-Adapt improves on DPSGD-F in loss"
        ):
            assert verdict is Verdict.NOT
        elif "at 0.1" in "".join(claim.keys):
            assert verdict is Verdict.MISSING
        else:
            assert verdict is Verdict.REPRODUCED, claim.says
