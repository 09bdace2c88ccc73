"""The strong simple row is there whenever the data are images or text."""

import pytest

from plumbline.experiments import Recipe
from plumbline.experiments.linear_baseline import LABEL, ROWS, with_simple_row
from tests.experiments.small import fields, images


def test_it_is_added_once_with_the_recipes_own_data() -> None:
    one = with_simple_row(images())
    assert [row.title for row in one.methods][-1] == LABEL
    assert one.methods[-1].data is not None
    assert (one.methods[-1].data.name, one.methods[-1].data.features) == ("mnist-8", "scattering")
    assert with_simple_row(one) == one


def test_tables_and_those_who_say_so_go_without() -> None:
    table = Recipe.of(fields())
    assert with_simple_row(table) == table
    without = images(simple_row=False)
    assert with_simple_row(without) == without


@pytest.mark.parametrize("name", sorted(ROWS))
def test_every_row_is_a_valid_part_of_a_recipe(name: str) -> None:
    one = with_simple_row(Recipe.of(fields(data={"name": name})))
    assert Recipe.of(one.model_dump(mode="json")) == one
