"""Recipes: what they accept, and what they say of what they do not."""

from pathlib import Path

import pytest

from plumbline.experiments import Recipe, RecipeError, RunSpec
from plumbline.experiments.recipes import find, names
from plumbline.noise import banded
from tests.experiments.small import fields, recipe

RECIPES = [find(name) for name in names() if not name.startswith("papers/")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_in_the_repository_can_be_read(path: Path) -> None:
    assert Recipe.read(path).name == path.stem


def test_a_recipe_survives_being_written() -> None:
    one = recipe()
    assert Recipe.of(one.model_dump(mode="json")) == one


def test_noise_is_a_rows_own_and_one_band_moves_no_folder() -> None:
    row: dict[str, object] = {"name": "dpsgd", "noise": {"bands": 4}}
    (made,) = recipe(methods=[row], baseline=None).methods
    assert made.noise is not None
    assert made.noise.build() == banded(4)
    assert made.parts == 4
    plain, correlated = (
        RunSpec(one := recipe(methods=[given], baseline=None), one.methods[0], 0)
        for given in ({"name": "dpsgd"}, row)
    )
    assert plain.method.parts == 1
    assert "noise" not in plain.facts["method"]
    assert plain.folder != correlated.folder


def test_names_of_methods_may_have_hyphens_and_titles_are_labels() -> None:
    one = recipe()
    assert [method.name for method in one.methods] == ["nonprivate", "dpsgd", "global_adapt"]
    assert [method.title for method in one.methods] == ["nonprivate", "dpsgd", "adapt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "adlut"}}, "data.name: .*no data set 'adlut'. Did you mean 'adult'"),
        ({"model": {"name": "zzz"}}, "no network 'zzz'. There are adult-mlp"),
        ({"methods": [{"name": "dpsdg"}]}, "methods.0.name: .*Did you mean 'dpsgd'"),
        (
            {"methods": [{"name": "dpsgd", "settings": {"clop": 1}}]},
            "'dpsgd': there is no option 'clop'.*mean 'clip'",
        ),
        (
            {"methods": [{"name": "normalised", "settings": {"clip": 1}}]},
            "'normalised': there is no option 'clip'. There are none",
        ),
        ({"methods": [{"name": "dpsgd", "settings": {"clip": -1}}]}, "clip is -1"),
        ({"methods": []}, "methods: .*at least 1 item"),
        ({"seeds": [1, 1]}, "give each once"),
        ({"baseline": "adam"}, "baseline is 'adam'; it must be one of"),
        ({"methods": [{"name": "dpsgd"}, {"name": "dpsgd"}]}, "a label of its own"),
        ({"optimizer": {"learning_rate": 0}}, "optimizer.learning_rate: .*greater than 0"),
        ({"speling": 1}, "recipe: there is no field 'speling'. Did you mean"),
        ({"zzz": 1}, "recipe: there is no field 'zzz'. There are averaging, baseline, budget"),
        ({"optimizer": {"learning_rat": 1.0}}, "optimizer: .*'learning_rat'.*'learning_rate'"),
        ({"budget": {"epsilom": 3, "delta": 1e-5}}, "budget: .*'epsilom'. Did you mean 'epsilon'"),
        ({"name": "../up"}, "name: "),
        ({"methods": [{"name": "dpsgd", "noise": {"bands": 0}}]}, "methods.0.noise.bands"),
        ({"methods": [{"name": "dpsgd", "noise": {"bands": 4, "parts": 2}}]}, "at least bands, 4"),
        ({"methods": [{"name": "adaptive", "noise": {"bands": 4}}]}, "changes along the run"),
        ({"methods": [{"name": "nonprivate", "noise": {"bands": 4}}]}, "has no guarantee"),
        (
            {
                "methods": [{"name": "dpsgd", "noise": {"bands": 4}}],
                "budget": {"epsilon": 3, "delta": 1e-5, "epochs": 2, "sampling_rate": 0.3},
            },
            "ask for at most 3 bands",
        ),
        ({"budget": {"delta": 1e-5, "steps": 3, "expected_batch_size": 8}}, "budget"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        Recipe.of(fields(**changes))


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.toml cannot be read: No such file"):
        Recipe.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(RecipeError, match="is not valid TOML"):
        Recipe.read(tmp_path / "bad.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="is not valid TOML"):
        Recipe.read(tmp_path / "bytes.toml")


def test_a_reproductions_file_is_read_as_the_recipe_within_it() -> None:
    one = Recipe.read(find("papers/004-table-4"))
    assert one.name == "004-table-4"


def test_recipes_are_found_by_path_or_name(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("name = 'own'")
    assert find(str(own)) == own
    assert find("demo").name == "demo.toml"
    with pytest.raises(RecipeError, match="Did you mean 'demo'"):
        find("dmo")
    with pytest.raises(RecipeError, match=r"no recipe file nowhere\.toml"):
        find("nowhere.toml")
