"""The metrics: each a combination of sums over records, so that resampling is a matrix product.

Metrics are fractions, not percentages. Where a metric has no meaning (a true positive rate without
positives, a selection rate with ten classes) the value is ``Undefined`` and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.fairness.outcomes import Floats, Integers, Outcomes
from plumbline.fairness.results import Number, Undefined

ECE_BINS = 15

ACCURACY = "accuracy"
LOSS = "loss"
SELECTION_RATE = "selection rate"
TRUE_POSITIVE_RATE = "true positive rate"
FALSE_POSITIVE_RATE = "false positive rate"


@dataclass(frozen=True, eq=False)
class Task:
    """What is the same for all groups: taken from all records, never from one group's.

    Attributes:
        classes: The classes of the labels, sorted.
        positive: The positive class.
        not_binary: Why there is no positive class, if so.
    """

    classes: Integers
    positive: int
    not_binary: str | None

    @classmethod
    def of(cls, outcomes: Outcomes, positive: int = 1) -> Task:
        """The task that the outcomes of all records show."""
        classes = np.unique(outcomes.labels)
        seen = np.union1d(classes, outcomes.predictions)
        why = None
        if len(np.union1d(seen, [positive])) > 2:
            shown = ", ".join(map(str, seen[:10].tolist())) + (", ..." if len(seen) > 10 else "")
            why = f"it needs two classes, {positive} the positive one; the classes are {shown}"
        return cls(classes, positive, why)


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric.

    Attributes:
        name: Its name in reports.
        better: Which values are better, for the worst group; None where neither is.
        columns: Numbers of each record, ``[n, J]``.
        combine: From sums of them over records, ``[..., J]``, to values, ``[...]``; NaN where there
            is none.
        why_not: Why there is no value for these records, if there is none.
    """

    name: str
    better: Literal["higher", "lower"] | None
    columns: Callable[[Outcomes, Task], Floats]
    combine: Callable[[Floats], Floats]
    why_not: Callable[[Outcomes, Task], str | None] = lambda outcomes, task: None

    def __call__(self, outcomes: Outcomes, task: Task) -> Number:
        """The metric of these records."""
        if (reason := self.why_not(outcomes, task)) is not None:
            return Undefined(reason)
        with np.errstate(over="ignore"):
            value = float(self.combine(self.columns(outcomes, task).sum(0)))
        return value if math.isfinite(value) else Undefined("it is too large for a number")


def _ratio(sums: Floats) -> Floats:
    """The sums of the first half of the columns over those of the second half, ``[..., J / 2]``."""
    half = sums.shape[-1] // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        quotients: Floats = sums[..., :half] / sums[..., half:]
    return quotients


def _mean_ratio(sums: Floats) -> Floats:
    """The mean of the ratios, for one ratio the ratio."""
    return np.asarray(_ratio(sums).mean(-1), np.float64)


def _columns(*columns: NDArray[Any]) -> Floats:
    return np.column_stack([column.astype(np.float64) for column in columns])


def _everyone(outcomes: Outcomes) -> NDArray[np.bool_]:
    return np.ones(len(outcomes), bool)


def _loss_columns(outcomes: Outcomes, task: Task) -> Floats:
    assert outcomes.losses is not None
    return _columns(outcomes.losses, _everyone(outcomes))


def _not_finite(what: str, values: Floats | None) -> str | None:
    if values is None:
        return f"no {what} were given"
    bad = int((~np.isfinite(values)).sum())
    return f"{bad} of {len(values)} {what} are not finite" if bad else None


def _balanced_columns(outcomes: Outcomes, task: Task) -> Floats:
    of_class = outcomes.labels[:, None] == task.classes
    return _columns(of_class & outcomes.correct[:, None], of_class)


def _missing_class(outcomes: Outcomes, task: Task) -> str | None:
    missing = np.setdiff1d(task.classes, outcomes.labels)
    return f"no record has label {missing[0]}" if len(missing) else None


def _calibration_columns(outcomes: Outcomes, task: Task) -> Floats:
    assert outcomes.scores is not None
    # Bin b is (b / 15, (b + 1) / 15], as in Guo et al.; a score of 0 is in the first one.
    bins = np.clip(np.ceil(outcomes.scores * ECE_BINS) - 1, 0, ECE_BINS - 1)
    excess = np.where(
        bins[:, None] == np.arange(ECE_BINS), (outcomes.correct - outcomes.scores)[:, None], 0.0
    )
    return _columns(excess, _everyone(outcomes))


def _calibration(sums: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        error: Floats = np.abs(sums[..., :-1]).sum(-1) / sums[..., -1]
    return error


def _positive(outcomes: Outcomes, task: Task) -> NDArray[np.bool_]:
    return np.equal(outcomes.predictions, task.positive)


def _rate_among(label: bool) -> Callable[[Outcomes, Task], Floats]:
    def columns(outcomes: Outcomes, task: Task) -> Floats:
        among = (outcomes.labels == task.positive) == label
        return _columns(_positive(outcomes, task) & among, among)

    return columns


def _nobody_among(label: bool) -> Callable[[Outcomes, Task], str | None]:
    def why_not(outcomes: Outcomes, task: Task) -> str | None:
        among = (outcomes.labels == task.positive) == label
        nobody = None if among.any() else f"no record has a {_SIGN[label]} label"
        return task.not_binary or nobody

    return why_not


_SIGN = {True: "positive", False: "negative"}

METRICS: tuple[Metric, ...] = (
    Metric(
        ACCURACY,
        "higher",
        lambda outcomes, task: _columns(outcomes.correct, _everyone(outcomes)),
        _mean_ratio,
    ),
    Metric(
        LOSS,
        "lower",
        _loss_columns,
        _mean_ratio,
        lambda outcomes, task: _not_finite("losses", outcomes.losses),
    ),
    # The mean over classes of the share predicted correctly. For a group that lacks one of the
    # classes scikit-learn takes the mean over the others, which is another quantity.
    Metric("balanced accuracy", "higher", _balanced_columns, _mean_ratio, _missing_class),
    # ECE with 15 equal-width bins of the predicted class's probability (Guo et al., 2017): the mean
    # over records of |accuracy - mean score| of their bin. Small groups come out too high.
    Metric(
        "calibration error",
        "lower",
        _calibration_columns,
        _calibration,
        lambda outcomes, task: _not_finite("scores", outcomes.scores),
    ),
    Metric(
        SELECTION_RATE,
        None,
        lambda outcomes, task: _columns(_positive(outcomes, task), _everyone(outcomes)),
        _mean_ratio,
        lambda outcomes, task: task.not_binary,
    ),
    Metric(TRUE_POSITIVE_RATE, "higher", _rate_among(True), _mean_ratio, _nobody_among(True)),
    Metric(FALSE_POSITIVE_RATE, "lower", _rate_among(False), _mean_ratio, _nobody_among(False)),
)
"""What ``evaluate`` computes. To add a metric is to add it here."""
