"""Sweeps: rows of a recipe from lists of values, their titles, and what is refused."""

from typing import Any

import pytest

from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.run_spec import RunSpec
from tests.experiments.small import recipe

METHODS = [{"name": "dpsgd", "label": "DP-SGD"}, {"name": "dp_sat", "origin": "paper"}]


def swept(sweep: Any) -> Recipe:
    fields = recipe().model_dump(mode="json", exclude_defaults=True, exclude={"baseline"})
    return Recipe.of({**fields, "methods": METHODS, "sweep": sweep})


def test_each_method_has_the_rows_of_its_own_settings() -> None:
    made = swept({"radius": [0.01, 0.1], "learning_rate": [1.0, 2.0]})
    assert [row.title for row in made.methods] == [
        "DP-SGD, learning rate 1",
        "DP-SGD, learning rate 2",
        "dp_sat (paper), radius 0.01, learning rate 1",
        "dp_sat (paper), radius 0.01, learning rate 2",
        "dp_sat (paper), radius 0.1, learning rate 1",
        "dp_sat (paper), radius 0.1, learning rate 2",
    ]
    last = made.methods[-1]
    assert (last.settings, last.learning_rate, last.base) == ({"radius": 0.1}, 2.0, "dp_sat")
    folders = {RunSpec(made, row, 0).folder for row in made.rows}
    assert len(folders) == 6


def test_a_swept_recipe_is_written_and_read_as_its_rows() -> None:
    made = swept({"radius": [0.01, 0.1]})
    again = Recipe.of(made.model_dump(mode="json", exclude_defaults=True))
    assert again == made
    assert again.methods[0].title == "DP-SGD"  # it has no radius


@pytest.mark.parametrize("rows", [7, "dpsgd", ["dpsgd"], [{"name": "dpsgd", "settings": 3}]])
def test_rows_that_are_none_are_refused_by_the_recipe(rows: Any) -> None:
    fields = recipe().model_dump(mode="json", exclude_defaults=True, exclude={"baseline"})
    with pytest.raises(RecipeError, match=r"methods|no setting of any method"):
        Recipe.of({**fields, "methods": rows, "sweep": {"learning_rate": [1.0]}})


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        pytest.param({"raduis": [1.0]}, "raduis, which is no setting of any method", id="unknown"),
        pytest.param({"radius": 0.1}, "give lists of numbers", id="no list"),
        pytest.param({"radius": []}, "give lists of numbers", id="empty"),
        pytest.param({"radius": ["a"]}, "give lists of numbers", id="words"),
        pytest.param([0.1], "give lists of numbers", id="no table"),
        pytest.param({"radius": [0.1, 0.1]}, "two methods are called", id="twice"),
        pytest.param({"radius": [-1.0]}, "radius", id="refused by the method"),
    ],
)
def test_what_cannot_be_swept_is_refused(sweep: Any, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        swept(sweep)
