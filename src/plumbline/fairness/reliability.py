"""Reliability: what is predicted with a probability, beside how often it comes true."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plumbline.fairness.metrics import Task, chances, not_finite
from plumbline.fairness.outcomes import Outcomes

BINS, FEWEST = 10, 20


@dataclass(frozen=True)
class Bin:
    """Records of similar probability.

    Attributes:
        predicted: Their mean probability.
        observed: The share of them for which it came true.
        records: How many they are.
    """

    predicted: float
    observed: float
    records: int


def reliability(outcomes: Outcomes, task: Task) -> tuple[Bin, ...]:
    """Bins of equally many records by the probability of the positive class.

    With more than two classes it is that of the predicted class. Fewer than 20 records make no bin,
    and records without a finite score none at all. (scikit-learn's ``calibration_curve`` has the
    same bins by quantiles, and does not say how many records they hold.)
    """
    if not_finite("scores", outcomes.scores) is not None:
        return ()
    assert outcomes.scores is not None
    if task.not_binary is None:
        scores, true = chances(outcomes, task), outcomes.labels == task.positive
    else:
        scores, true = outcomes.scores, outcomes.correct
    order = np.argsort(scores, kind="stable")
    count = min(BINS, len(order) // FEWEST)
    return tuple(
        Bin(float(scores[own].mean()), float(true[own].mean()), len(own))
        for own in (np.array_split(order, count) if count else ())
    )
