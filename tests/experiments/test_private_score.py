"""Scores of a private selection: how far one record moves them, and what they come to."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

from plumbline.experiments.private_score import SCORED, SENSITIVITY, PrivateScore, check_scored
from plumbline.experiments.recipe import RecipeError
from plumbline.fairness import Outcomes

CLASSES = 3


def outcomes(count: int, seed: int = 0) -> Outcomes:
    draw = np.random.default_rng(seed)
    labels, guesses = draw.integers(0, CLASSES, (2, count))
    labels = np.where(draw.random(count) < 0.5, guesses, labels)
    return Outcomes(labels, guesses, draw.exponential(1.0, count))


@pytest.mark.parametrize("metric", SCORED)
@pytest.mark.parametrize("loss", [0.0, 1e-9, 0.7, 50.0, np.inf, np.nan, -1.0])
def test_one_record_more_moves_the_sums_by_at_most_one(metric: str, loss: float) -> None:
    scored, before = PrivateScore(metric, CLASSES), outcomes(500)
    for label in range(CLASSES):
        for guess in range(CLASSES):
            after = Outcomes(
                [*before.labels, label],
                [*before.predictions, guess],
                [*before.losses, loss],  # type: ignore[misc]
            )
            moved = scored.sums(after) - scored.sums(before)
            assert float(moved.norm()) <= SENSITIVITY
            assert (moved >= 0).all()


def test_a_perfect_record_moves_each_sum_by_one() -> None:
    for metric in SCORED:
        scored = PrivateScore(metric, CLASSES)
        one, two = Outcomes([1], [1], [0.0]), Outcomes([1, 1], [1, 1], [0.0, 0.0])
        assert float((scored.sums(two) - scored.sums(one)).norm()) == SENSITIVITY


def test_without_noise_the_score_is_the_metric() -> None:
    found = outcomes(4000)
    assert found.losses is not None
    expected = {
        "loss": -np.minimum(found.losses, np.log(CLASSES) + 3).mean(),
        "accuracy": found.correct.mean(),
        "balanced accuracy": balanced_accuracy_score(found.labels, found.predictions),
        "macro f1": f1_score(found.labels, found.predictions, average="macro"),
    }
    assert set(expected) == set(SCORED)
    for metric, value in expected.items():
        scored = PrivateScore(metric, CLASSES)
        assert scored.value(scored.sums(found), 4000) == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("metric", ["balanced accuracy", "macro f1"])
def test_noise_below_zero_is_no_score(metric: str) -> None:
    scored = PrivateScore(metric, 2)
    assert scored.value(torch.full((4,), -5.0, dtype=torch.float64), 100) == 0.0


def test_other_metrics_are_refused() -> None:
    for metric in ("auc", "calibration error", "worst group loss"):
        with pytest.raises(RecipeError, match="It can aim at loss, accuracy"):
            check_scored(metric)
