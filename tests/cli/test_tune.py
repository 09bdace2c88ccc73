from pathlib import Path

import pytest

from plumbline.experiments import Recipe
from tests.cli.calling import Called, small_recipe


def test_a_search_writes_a_recipe(call: Called, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    recipe = small_recipe(tmp_path)
    assert call("tune", recipe, "--workers", "1", "--trials", "2") == 0
    assert "not the search" in call.out
    assert "settings found" in call.out
    tuned = Recipe.read(tmp_path / "runs" / "small" / "tuned.toml")
    assert [row.origin for row in tuned.methods] == ["given", "tuned"] * 2
    assert call("tune", recipe, "--workers", "1", "--trials", "2", "--json") == 0
    assert [row["method"] for row in call.json["rows"]] == ["non-private", "DPSGD"]
    assert "not the search" in call.json["not_covered"]
