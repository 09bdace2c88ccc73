from pathlib import Path

import pytest

from plumbline.cli.names import methods_starting, settings_of
from plumbline.instruments import recipe_of
from plumbline.instruments.diagnosing import row_named
from tests.cli.calling import small_recipe


def test_a_row_by_title_or_name(tmp_path: Path) -> None:
    recipe = recipe_of(small_recipe(tmp_path))
    assert row_named(recipe, None).title == "DPSGD"  # the first that is private
    for name in ("DPSGD", "dpsgd"):
        assert row_named(recipe, name).title == "DPSGD"
    assert row_named(recipe, "nonprivate").title == "non-private"
    with pytest.raises(ValueError, match="has no method 'DPSGF'; it has"):
        row_named(recipe, "DPSGF")


def test_settings_are_values() -> None:
    given = ["clip=0.5", "accounting=paper", "radius = 1e-2"]
    found = settings_of("dp_sam", given)
    assert found == {"clip": 0.5, "accounting": "paper", "radius": 0.01}
    assert settings_of("dpsgd_f", ["groups=[0, 1, 2]"]) == {"groups": [0, 1, 2]}


def test_the_shell_completes_methods() -> None:
    assert methods_starting("global-") == ["global_scaling", "global_adapt"]
