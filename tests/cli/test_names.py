from pathlib import Path

import pytest

from plumbline.cli.names import method_of, methods_starting, recipe_at, settings_of
from tests.cli.calling import small_recipe


def test_a_row_by_title_or_name(tmp_path: Path) -> None:
    recipe = recipe_at(str(small_recipe(tmp_path)))
    assert method_of(recipe, None).title == "DPSGD"  # the first that is private
    for name in ("DPSGD", "dpsgd"):
        assert method_of(recipe, name).title == "DPSGD"
    assert method_of(recipe, "nonprivate").title == "non-private"
    with pytest.raises(ValueError, match="Did you mean 'DPSGD'"):
        method_of(recipe, "DPSGF")


def test_settings_are_values() -> None:
    given = ["clip=0.5", "accounting=paper", "radius = 1e-2"]
    found = settings_of("dp_sam", given)
    assert found == {"clip": 0.5, "accounting": "paper", "radius": 0.01}
    assert settings_of("dpsgd_f", ["groups=[0, 1, 2]"]) == {"groups": [0, 1, 2]}


def test_the_shell_completes_methods() -> None:
    assert methods_starting("global-") == ["global_scaling", "global_adapt"]
