"""The metrics of numeric targets, and what they are computed from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor

from plumbline.fairness.metrics import LOSS, Metric, mean_loss, not_finite
from plumbline.fairness.outcomes import Floats, Integers, as_numbers, check_lengths

R2 = "r2"
RMSE = "rmse"
MAE = "mae"
BASELINE_RMSE = "baseline rmse"


class NumberOutcomes:
    """One run's predictions of a number on n test records, in the same order in all arrays.

    Attributes:
        labels: The true numbers, ``[n]`` float64.
        predictions: The predicted ones. They may be infinite or NaN, if the model diverged.
        losses: Each record's loss, ``[n]`` float64; by default the squared error.
    """

    def __init__(
        self,
        labels: ArrayLike | Tensor,
        predictions: ArrayLike | Tensor,
        losses: ArrayLike | Tensor | None = None,
    ) -> None:
        self.labels = as_numbers("labels", labels)
        self.predictions = as_numbers("predictions", predictions)
        with np.errstate(over="ignore"):
            self.losses: Floats = (
                np.square(self.labels - self.predictions)
                if losses is None
                else as_numbers("losses", losses)
            )
        check_lengths(vars(self))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Integers) -> NumberOutcomes:
        """The outcomes of records ``rows`` (``[R]``)."""
        return NumberOutcomes(self.labels[rows], self.predictions[rows], self.losses[rows])


def mean_of(outcomes: NumberOutcomes) -> float:
    """What the simplest model says of every record: the mean of all, never of one group."""
    return float(outcomes.labels.mean())


def _why_not(outcomes: NumberOutcomes, mean: float) -> str | None:
    return not_finite("predictions", outcomes.predictions)


def _no_variance(outcomes: NumberOutcomes, mean: float) -> str | None:
    if len(outcomes) < 2 or not np.ptp(outcomes.labels):
        return "all records have the same target"
    return _why_not(outcomes, mean)


REGRESSION: tuple[Metric, ...] = (
    Metric(R2, "higher", lambda own, mean: r2_score(own.labels, own.predictions), _no_variance),
    Metric(
        RMSE,
        "lower",
        lambda own, mean: root_mean_squared_error(own.labels, own.predictions),
        _why_not,
    ),
    Metric(
        MAE, "lower", lambda own, mean: mean_absolute_error(own.labels, own.predictions), _why_not
    ),
    Metric(
        BASELINE_RMSE,
        None,
        lambda own, mean: root_mean_squared_error(own.labels, np.full(len(own), mean)),
    ),
    Metric(LOSS, "lower", mean_loss, lambda own, mean: not_finite("losses", own.losses)),
)
"""What ``evaluate`` computes for numbers, in the target's own unit; the loss is as trained on."""
