"""Methods as the rows of a recipe, and rows by name."""

from pathlib import Path

import pytest

from plumbline.experiments import RecipeError
from plumbline.instruments import recipe_of
from plumbline.instruments.rows import row_named
from tests.cli.calling import small_recipe


def test_a_row_by_title_or_name(tmp_path: Path) -> None:
    recipe = recipe_of(small_recipe(tmp_path))
    assert row_named(recipe, None).title == "DPSGD"  # the first that is private
    for name in ("DPSGD", "dpsgd"):
        assert row_named(recipe, name).title == "DPSGD"
    assert row_named(recipe, "nonprivate").title == "non-private"
    with pytest.raises(RecipeError, match="has no method 'DPSGF'; it has"):
        row_named(recipe, "DPSGF")
