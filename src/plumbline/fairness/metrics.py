"""The metrics by group: accuracy and what it is worth, ranking, loss, calibration, and rates.

Metrics are fractions, not percentages. Where a metric has no meaning (a true positive rate without
positives, a selection rate with ten classes) the value is ``Undefined`` and says why. Those of
numeric targets are in ``regression``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import auc, average_precision_score, f1_score, roc_curve

from plumbline.fairness.outcomes import Floats, Integers, Outcomes
from plumbline.results import Number, Undefined

ECE_BINS = 15

ACCURACY = "accuracy"
BASELINE = "baseline accuracy"
EXPECTED = "accuracy by base rates"
BALANCED = "balanced accuracy"
AUC = "auc"
AVERAGE_PRECISION = "average precision"
MACRO_F1 = "macro f1"
LOSS = "loss"
CALIBRATION = "calibration error"
MOST_PREDICTED = "most predicted"
SELECTION_RATE = "selection rate"
TRUE_POSITIVE_RATE = "true positive rate"
FALSE_POSITIVE_RATE = "false positive rate"

TITLES = {AUC: "AUC", MACRO_F1: "macro F1", "r2": "R²", "rmse": "RMSE", "mae": "MAE"}
"""Names of metrics where people read, as far as they differ."""


@dataclass(frozen=True, eq=False)
class Task:
    """What is the same for all groups: taken from all records, never from one group.

    Attributes:
        classes: The classes of the labels, sorted.
        positive: The positive class.
        not_binary: Why there is no positive class, or None if there is one.
        majority: The class that most records have.
        recalls: The share of each class's records that is predicted correctly.
    """

    classes: Integers
    positive: int
    not_binary: str | None
    majority: int
    recalls: Floats

    @classmethod
    def of(cls, outcomes: Outcomes, positive: int = 1) -> Task:
        """The task, from the outcomes of all records."""
        classes, counts = np.unique(outcomes.labels, return_counts=True)
        seen = np.union1d(classes, outcomes.predictions)
        why = None
        if len(np.union1d(seen, [positive])) > 2:
            shown = ", ".join(map(str, seen[:10].tolist())) + (", ..." if len(seen) > 10 else "")
            why = f"it needs two classes, {positive} the positive one; the classes are {shown}"
        recalls = [outcomes.correct[outcomes.labels == one].mean() for one in classes]
        majority = int(classes[counts.argmax()])
        return cls(classes, positive, why, majority, np.array(recalls))


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
    compute: Callable[[Any, Any], float]
    why_not: Callable[[Any, Any], str | None] = lambda outcomes, task: None

    @property
    def title(self) -> str:
        """What it is called where people read."""
        return TITLES.get(self.name, self.name)

    def __call__(self, outcomes: Any, task: Any) -> Number:
        """The metric of these records."""
        if (reason := self.why_not(outcomes, task)) is not None:
            return Undefined(reason)
        with np.errstate(over="ignore"):
            value = float(self.compute(outcomes, task))
        return value if math.isfinite(value) else Undefined("it is too large for a number")


def mean_loss(outcomes: Any, task: Any) -> float:
    """The mean of the records' own losses."""
    # Added in order: the pairwise sum of ``mean`` would change published results in the last digit.
    return float(np.cumsum(outcomes.losses)[-1] / len(outcomes))


def not_finite(what: str, values: Floats | None) -> str | None:
    """Why there is no number of these values, or None."""
    if values is None:
        return f"no {what} were given"
    bad = int((~np.isfinite(values)).sum())
    return f"{bad} of {len(values)} {what} are not finite" if bad else None


def _balanced_accuracy(outcomes: Outcomes, task: Task) -> float:
    """The mean over classes of the share predicted correctly."""
    of_class = outcomes.labels[:, None] == task.classes
    right = of_class & outcomes.correct[:, None]
    return float((right.sum(0) / of_class.sum(0)).mean())


def _by_base_rates(outcomes: Outcomes, task: Task) -> float:
    """The accuracy of these records if each class were recognised as well as among all."""
    return float(task.recalls[np.searchsorted(task.classes, outcomes.labels)].mean())


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


def _no_ranking(outcomes: Outcomes, task: Task) -> str | None:
    """Why records cannot be ranked by the probability of the positive class, or None."""
    bad = task.not_binary or not_finite("scores", outcomes.scores)
    return bad or _no_label(True)(outcomes, task) or _no_label(False)(outcomes, task)


def chances(outcomes: Outcomes, task: Task) -> Floats:
    """The probability of the positive class, of two, ``[n]``."""
    assert outcomes.scores is not None
    return np.where(_positive(outcomes, task), outcomes.scores, 1 - outcomes.scores)


def _ranked(score: Callable[[Any, Any], float]) -> Callable[[Outcomes, Task], float]:
    return lambda outcomes, task: float(
        score(_with_label(outcomes, task, True), chances(outcomes, task))
    )


def _area(labels: Any, scores: Any) -> float:
    """``roc_auc_score`` of two classes, without its looking for more."""
    false_positives, true_positives, _ = roc_curve(labels, scores)
    return float(auc(false_positives, true_positives))


def _macro_f1(outcomes: Outcomes, task: Task) -> float:
    return float(
        f1_score(
            outcomes.labels,
            outcomes.predictions,
            labels=task.classes,
            average="macro",
            zero_division=0.0,
        )
    )


def _most_predicted(outcomes: Outcomes, task: Task) -> float:
    return float(np.unique(outcomes.predictions, return_counts=True)[1].max() / len(outcomes))


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
    Metric(LOSS, "lower", mean_loss, lambda outcomes, task: not_finite("losses", outcomes.losses)),
    # What one class for all would get: of a group, the class that is largest among all records.
    Metric(BASELINE, None, lambda outcomes, task: float(np.mean(outcomes.labels == task.majority))),
    Metric(EXPECTED, None, _by_base_rates),
    # For a group that lacks a class scikit-learn takes the mean over the other classes, which is
    # another quantity; here the group has no value.
    Metric(BALANCED, "higher", _balanced_accuracy, _missing_class),
    Metric(AUC, "higher", _ranked(_area), _no_ranking),
    Metric(AVERAGE_PRECISION, "higher", _ranked(average_precision_score), _no_ranking),
    Metric(MACRO_F1, "higher", _macro_f1, _missing_class),
    # ECE with 15 equal-width bins of the predicted class's probability (Guo et al., 2017): the mean
    # over records of |accuracy - mean score| of their bin. Small groups come out too high.
    Metric(
        CALIBRATION,
        "lower",
        _calibration_error,
        lambda outcomes, task: not_finite("scores", outcomes.scores),
    ),
    Metric(
        SELECTION_RATE,
        None,
        lambda outcomes, task: float(_positive(outcomes, task).mean()),
        lambda outcomes, task: task.not_binary,
    ),
    Metric(TRUE_POSITIVE_RATE, "higher", _rate(True), _no_label(True)),
    Metric(FALSE_POSITIVE_RATE, "lower", _rate(False), _no_label(False)),
    # At 1 the model gives all records one class.
    Metric(MOST_PREDICTED, None, _most_predicted),
)
"""What ``evaluate`` computes for classes. To add a metric, add it here."""
