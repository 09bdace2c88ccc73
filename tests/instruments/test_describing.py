"""Recipes from a description, and recipes that a description changes."""

from pathlib import Path

import pytest

import plumbline as pl
from plumbline.experiments import Recipe, RecipeError
from plumbline.experiments.recipe import FoundPart
from plumbline.instruments import recipe_of
from tests.cli.calling import small_recipe
from tests.experiments.small_table import patients as small_patients
from tests.experiments.small_table import recipe as small_table
from tests.instruments.people import patients, tensors


def test_a_description_changes_a_recipe(tmp_path: Path) -> None:
    path = small_recipe(tmp_path)
    changed = recipe_of(path, methods=["dpsgd"], epsilon=[1, 8, 3], epochs=2, trials=4)
    assert [row.title for row in changed.methods] == ["DPSGD"]
    assert changed.methods[0].settings == {"clip": 0.5}
    assert changed.baseline == "DPSGD"
    assert (changed.budget.epsilon, changed.epsilons) == (3, (1, 8, 3))
    assert (changed.budget.epochs, changed.budget.steps) == (2, None)
    assert changed.tune.trials == 4
    assert changed.tune.before_comparing
    other = recipe_of(path, method="bam", settings={"radius": 0.1})
    assert other.baseline is None
    assert other.methods[0].settings == {"radius": 0.1}


def test_the_recipe_that_says_the_same(tmp_path: Path) -> None:
    made = recipe_of(data=patients(tmp_path / "p.csv", 300), target="readmitted", sensitive="sex")
    (tmp_path / "same.toml").write_text(made.toml())
    assert Recipe.read(tmp_path / "same.toml") == made
    assert made.tune.before_comparing
    assert made.probe is not None
    assert not recipe_of(data=tensors(), trials=0).tune.before_comparing


def test_what_was_found_is_all_that_is_known_of_the_number_of_records(tmp_path: Path) -> None:
    """A run's data, on which another is described: the exact number of rows is hidden still."""
    query = {"name": "the number of records", "sensitivity": 1.0, "noise_multiplier": 9.0}
    release = {"sampling": {"kind": "full_batch"}, "queries": [query], "delta": 0.0}
    data = small_table(small_patients(tmp_path / "p.csv", 300)).data
    found = FoundPart(run="schema-0", release=release, columns=("age",), records=True)
    known = data.model_copy(update={"found": found, "options": data.options | {"records": 500}})
    budget = pl.Budget(epsilon=3.0, delta=1e-5, epochs=2, sampling_rate=0.1)
    made = recipe_of(data=known, budget=budget, method="dpsgd")
    assert made.budget.expected_batch_size == 40  # a tenth of 400


def test_rows_of_numbers_have_an_mlp_and_the_linear_model() -> None:
    made = recipe_of(data=tensors())
    assert made.model.name == "mlp"
    assert made.methods[-1].label == "linear model"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "no_such:Net"}, "The network 'no_such:Net' cannot be used: the module"),
        ({"methods": ["dpsgd", "dpsgd"]}, "two methods are called 'DP-SGD'; give each a label"),
        ({"methods": ["dpsdg"]}, "there is no method 'dpsdg'. Did you mean 'dpsgd'?"),
        ({"method": "dpsgd", "settings": {"clp": 1}}, "no option 'clp'. Did you mean 'clip'?"),
        ({"measure": ["bais"]}, "no diagnostic 'bais'. Did you mean 'bias'?"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(given: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe_of(data=tensors(), **given)  # type: ignore[arg-type]
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bands_are_for_every_method_with_a_guarantee() -> None:
    rows = recipe_of(data="adult", methods=["nonprivate", "dpsgd"], bands=4, trials=0).methods
    assert [row.parts for row in rows] == [1, 4]
    changed = recipe_of("demo-untuned", method="DPSGD", bands=2)
    assert changed.methods[0].parts == 2
    assert recipe_of(changed, bands=1).methods[0].noise is None
