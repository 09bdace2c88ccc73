"""The metrics by group: accuracy, loss, calibration, and the rates of two-class tasks.

Metrics are fractions, not percentages. Where a metric has no meaning (a true positive rate without
positives, a selection rate with ten classes) the value is ``Undefined`` and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.fairness.outcomes import Floats, Integers, Outcomes
from plumbline.results import Number, Undefined

ECE_BINS = 15

ACCURACY = "accuracy"
LOSS = "loss"
SELECTION_RATE = "selection rate"
TRUE_POSITIVE_RATE = "true positive rate"
FALSE_POSITIVE_RATE = "false positive rate"


@dataclass(frozen=True, eq=False)
class Task:
    """What is the same for all groups: taken from all records, never from one group.

    Attributes:
        classes: The classes of the labels, sorted.
        positive: The positive class.
        not_binary: Why there is no positive class, or None if there is one.
    """

    classes: Integers
    positive: int
    not_binary: str | None

    @classmethod
    def of(cls, outcomes: Outcomes, positive: int = 1) -> Task:
        """The task, from the outcomes of all records."""
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
        better: Whether higher or lower values are better, for the worst group; None for neither.
        compute: Its value for some records.
        why_not: Why these records have no value, or None if they have one.
    """

    name: str
    better: Literal["higher", "lower"] | None
    compute: Callable[[Outcomes, Task], float]
    why_not: Callable[[Outcomes, Task], str | None] = lambda outcomes, task: None

    def __call__(self, outcomes: Outcomes, task: Task) -> Number:
        """The metric of these records."""
        if (reason := self.why_not(outcomes, task)) is not None:
            return Undefined(reason)
        with np.errstate(over="ignore"):
            value = float(self.compute(outcomes, task))
        return value if math.isfinite(value) else Undefined("it is too large for a number")


def _mean_loss(outcomes: Outcomes, task: Task) -> float:
    assert outcomes.losses is not None
    # Added in order: the pairwise sum of ``mean`` would change published results in the last digit.
    return float(np.cumsum(outcomes.losses)[-1] / len(outcomes))


def _not_finite(what: str, values: Floats | None) -> str | None:
    if values is None:
        return f"no {what} were given"
    bad = int((~np.isfinite(values)).sum())
    return f"{bad} of {len(values)} {what} are not finite" if bad else None


def _balanced_accuracy(outcomes: Outcomes, task: Task) -> float:
    """The mean over classes of the share predicted correctly."""
    of_class = outcomes.labels[:, None] == task.classes
    right = of_class & outcomes.correct[:, None]
    return float((right.sum(0) / of_class.sum(0)).mean())


def _missing_class(outcomes: Outcomes, task: Task) -> str | None:
    missing = np.setdiff1d(task.classes, outcomes.labels)
    return f"no record has label {missing[0]}" if len(missing) else None


def _calibration_error(outcomes: Outcomes, task: Task) -> float:
    assert outcomes.scores is not None
    # Bin b is (b / 15, (b + 1) / 15], as in Guo et al.; a score of 0 is in the first one.
    bins = np.clip(np.ceil(outcomes.scores * ECE_BINS) - 1, 0, ECE_BINS - 1)
    in_bin = bins[:, None] == np.arange(ECE_BINS)
    excess = np.where(in_bin, (outcomes.correct - outcomes.scores)[:, None], 0.0)
    return float(np.abs(excess.sum(0)).sum() / len(outcomes))


def _positive(outcomes: Outcomes, task: Task) -> NDArray[np.bool_]:
    return np.equal(outcomes.predictions, task.positive)


def _with_label(outcomes: Outcomes, task: Task, positive: bool) -> NDArray[np.bool_]:
    return np.equal(np.equal(outcomes.labels, task.positive), positive)


def _rate(label: bool) -> Callable[[Outcomes, Task], float]:
    """The share of positive predictions among records with a positive (or negative) label."""
    return lambda outcomes, task: float(
        _positive(outcomes, task)[_with_label(outcomes, task, label)].mean()
    )


def _no_label(label: bool) -> Callable[[Outcomes, Task], str | None]:
    sign = "positive" if label else "negative"

    def why_not(outcomes: Outcomes, task: Task) -> str | None:
        found = _with_label(outcomes, task, label).any()
        return task.not_binary or (None if found else f"no record has a {sign} label")

    return why_not


METRICS: tuple[Metric, ...] = (
    Metric(ACCURACY, "higher", lambda outcomes, task: float(outcomes.correct.mean())),
    Metric(
        LOSS, "lower", _mean_loss, lambda outcomes, task: _not_finite("losses", outcomes.losses)
    ),
    # For a group that lacks a class scikit-learn takes the mean over the other classes, which is
    # another quantity; here the group has no value.
    Metric("balanced accuracy", "higher", _balanced_accuracy, _missing_class),
    # ECE with 15 equal-width bins of the predicted class's probability (Guo et al., 2017): the mean
    # over records of |accuracy - mean score| of their bin. Small groups come out too high.
    Metric(
        "calibration error",
        "lower",
        _calibration_error,
        lambda outcomes, task: _not_finite("scores", outcomes.scores),
    ),
    Metric(
        SELECTION_RATE,
        None,
        lambda outcomes, task: float(_positive(outcomes, task).mean()),
        lambda outcomes, task: task.not_binary,
    ),
    Metric(TRUE_POSITIVE_RATE, "higher", _rate(True), _no_label(True)),
    Metric(FALSE_POSITIVE_RATE, "lower", _rate(False), _no_label(False)),
)
"""What ``evaluate`` computes. To add a metric, add it here."""
