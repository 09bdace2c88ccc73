"""Private selection: only the winner is shown, and epsilon covers the choice."""

import json
import tempfile
from pathlib import Path

import pytest
import torch

from plumbline import models
from plumbline.experiments import RecipeError, select
from plumbline.experiments.recipe import Recipe
from plumbline.mechanism.rounding import rounded_up
from tests.experiments.small import fields

BUDGET = {"epsilon": 8.0, "delta": 1e-5, "steps": 5, "expected_batch_size": 64}


@pytest.fixture
def small() -> Recipe:
    return Recipe.of(fields(budget=BUDGET, tune={"validation": 0.1}))


def test_the_winner_is_kept_and_nothing_else(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "secret"))
    (tmp_path / "secret").mkdir()
    found = select(small, "dpsgd", tmp_path / "winner", epsilon=4.0, mean=2.0, seed=1)
    assert 3.9 < found.epsilon <= 4.0
    assert not list((tmp_path / "secret").iterdir())  # what the losers did is gone
    kept = {path.name for path in (tmp_path / "winner").iterdir()}
    assert kept == {"model.pt", "result.json", "statement.txt"}
    model = models.build("adult-mlp")
    model.load_state_dict(torch.load(tmp_path / "winner" / "model.pt", weights_only=True))
    result = json.loads((tmp_path / "winner" / "result.json").read_text())
    assert result["row"]["settings"] == found.row.settings
    text = " ".join(found.statement.split())
    assert text.startswith(f"Epsilon {rounded_up(found.epsilon, 4)} at delta 1e-05 for one record")
    assert "covers the training of every candidate, their scores, and the choice" in text
    assert "the number itself is not disclosed" in text
    assert "knows the noise" in text


def test_the_same_seed_chooses_the_same(small: Recipe, tmp_path: Path) -> None:
    first, second = (
        select(small, "dpsgd", tmp_path / name, epsilon=4.0, mean=1.5, seed=3) for name in "ab"
    )
    assert first.row == second.row
    assert first.score == second.score


def test_secure_selection_has_no_seed(small: Recipe, tmp_path: Path) -> None:
    found = select(small, "dpsgd", tmp_path, epsilon=4.0, mean=1.2)
    assert "seed" not in found.statement
    assert 0 <= found.report.overall["accuracy"] <= 1  # type: ignore[operator]


def test_what_cannot_be_selected_is_refused(small: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="nonprivate has no guarantee"):
        select(small, "nonprivate", tmp_path, epsilon=4.0)
    with pytest.raises(RecipeError, match="no row 'bam'"):
        select(small, "bam", tmp_path, epsilon=4.0)
