"""Metrics by group of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sklearn

from plumbline.checks import check_count
from plumbline.fairness.gaps import Gap, gap_of, judged_of, too_small_of, worst_of
from plumbline.fairness.groups import MINIMUM_SIZE, Names, SensitiveFeatures, group_records
from plumbline.fairness.metrics import (
    AUC,
    AVERAGE_PRECISION,
    CALIBRATION,
    FALSE_POSITIVE_RATE,
    LOSS,
    MACRO_F1,
    METRICS,
    SELECTION_RATE,
    TRUE_POSITIVE_RATE,
    Metric,
    Task,
)
from plumbline.fairness.outcomes import Outcomes
from plumbline.fairness.regression import (
    BASELINE_RMSE,
    MAE,
    REGRESSION,
    RMSE,
    NumberOutcomes,
    mean_of,
)
from plumbline.fairness.reliability import Bin, reliability
from plumbline.formats import amount, number, percent
from plumbline.results import Number, Undefined, to_json

NOT_COVERED = "computed from the test records without noise: not covered by epsilon"
"""Say this wherever fairness numbers are shown: epsilon covers the training records only."""

EMPTY = Undefined("the group has no records")
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in (*METRICS, *REGRESSION)}
"""Every metric, of classes and of numbers."""
NUMBERS = (LOSS, AUC, AVERAGE_PRECISION, MACRO_F1, CALIBRATION)
"""Metrics that are written as numbers."""
OWN_UNIT = (RMSE, MAE, BASELINE_RMSE)
"""Metrics in the unit of the target; the others are shares."""


_SHORT_TITLES = {
    "baseline accuracy": "baseline",
    "balanced accuracy": "balanced",
    "average precision": "av. prec.",
    "calibration error": "calib.",
    "selection rate": "selected",
    "true positive rate": "true pos.",
    "false positive rate": "false pos.",
    "baseline rmse": "baseline",
}
IN_ORDER = (
    "accuracy", "baseline accuracy", "r2", "rmse", "mae", "baseline rmse", "auc",
    "true positive rate", "false positive rate", "balanced accuracy", "loss", "average precision",
    "calibration error", "macro f1", "selection rate",
)  # fmt: skip
"""The metrics by importance: where there is not room for all, the first have it."""


def short_title(name: str) -> str:
    """What a metric is called at the head of a column."""
    return _SHORT_TITLES.get(name, BY_NAME[name].title)


def written(name: str, value: object, error: object = None) -> str:
    """A metric's value as people read it: a share in per cent, others as numbers."""
    if name in OWN_UNIT:
        return amount(value, error)
    return (number if name in NUMBERS else percent)(value, error)


@dataclass(frozen=True)
class GroupReport:
    """One model's metrics, overall and by group.

    Attributes:
        overall: Each metric over all records, including those of unknown group.
        by_group: Each metric by group.
        sizes: The number of test records of each group.
        minimum_size: Groups with fewer records are not judged.
        reliability: Predicted probabilities beside what came true, of all records.
        reliability_by_group: The same by group.
    """

    overall: Mapping[str, Number]
    by_group: Mapping[str, Mapping[str, Number]]
    sizes: Mapping[str, int]
    minimum_size: int = MINIMUM_SIZE
    reliability: tuple[Bin, ...] = ()
    reliability_by_group: Mapping[str, tuple[Bin, ...]] = field(default_factory=dict)

    def metric(self, name: str) -> dict[str, Number]:
        """One metric by group."""
        return {group: values[name] for group, values in self.by_group.items()}

    def value(self, group: str, name: str) -> Number:
        """One metric of one group; undefined for a group that is not in this report."""
        return self.by_group[group][name] if group in self.by_group else EMPTY

    @property
    def judged(self) -> tuple[str, ...]:
        """The groups that are large enough to judge."""
        return judged_of(self.sizes, self.minimum_size)

    @property
    def too_small(self) -> tuple[str, ...]:
        """The groups of fewer than ``minimum_size`` records."""
        return too_small_of(self.sizes, self.minimum_size)

    def difference(self) -> dict[str, Gap]:
        """The largest difference between two judged groups, by metric."""
        return {name: gap_of(self.metric(name), self.judged) for name in self.overall}

    @property
    def worst(self) -> dict[str, str | Undefined]:
        """The judged group that does worst, by metric."""
        return {
            name: worst_of(self.metric(name), self.judged, BY_NAME[name].better)
            for name in self.overall
        }

    @property
    def demographic_parity_difference(self) -> Number:
        """The largest difference in selection rates."""
        return self._gap(SELECTION_RATE)

    @property
    def equalised_odds_difference(self) -> Number:
        """The larger of the differences in true and in false positive rates."""
        values = [self._gap(name) for name in (TRUE_POSITIVE_RATE, FALSE_POSITIVE_RATE)]
        for value in values:
            if isinstance(value, Undefined):
                return value
        return max(value for value in values if not isinstance(value, Undefined))

    def _gap(self, name: str) -> Number:
        if name not in self.overall:
            return Undefined("the target is a number, not a class")
        return gap_of(self.metric(name), self.judged).value

    def to_json(self) -> dict[str, Any]:
        """As JSON-able values."""
        parts = {
            "overall": self.overall,
            "by_group": self.by_group,
            "sizes": self.sizes,
            "minimum_size": self.minimum_size,
            "too_small": self.too_small,
            "difference": self.difference(),
            "worst": self.worst,
            "demographic_parity_difference": self.demographic_parity_difference,
            "equalised_odds_difference": self.equalised_odds_difference,
            "reliability": self.reliability,
            "reliability_by_group": self.reliability_by_group,
            "privacy": NOT_COVERED,
        }
        return {name: to_json(part) for name, part in parts.items()}


def evaluate(
    outcomes: Outcomes | NumberOutcomes,
    *,
    sensitive_features: SensitiveFeatures,
    names: Names | None = None,
    positive: int = 1,
    minimum_size: int = MINIMUM_SIZE,
) -> GroupReport:
    """The metrics by group.

    Args:
        outcomes: What a model did on n test records.
        sensitive_features: Each record's group, ``[n]``, or several features by name, whose
            intersections are the groups. None, NaN and -1 are the group "unknown".
        names: The groups' names by value; for several features, by feature.
        positive: The class whose prediction is a selection, in tasks of two classes.
        minimum_size: Groups with fewer records are too small to judge.
    """
    check_count("minimum_size", minimum_size)
    groups = group_records(sensitive_features, len(outcomes), names)
    metrics: tuple[Metric, ...] = METRICS
    task: Task | float
    if isinstance(outcomes, Outcomes):
        task = Task.of(outcomes, positive)
    else:
        metrics, task = REGRESSION, mean_of(outcomes)

    def values(own: Outcomes | NumberOutcomes) -> dict[str, Number]:
        return {metric.name: metric(own, task) for metric in metrics}

    def bins(own: Outcomes | NumberOutcomes | None) -> tuple[Bin, ...]:
        if isinstance(own, Outcomes) and isinstance(task, Task):
            return reliability(own, task)
        return ()

    parts = {
        label: outcomes.take(groups.rows(label)) if size else None
        for label, size in groups.sizes.items()
    }
    nothing: dict[str, Number] = dict.fromkeys((metric.name for metric in metrics), EMPTY)
    # Metrics say why they are undefined before they compute: scikit-learn need not look again.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        overall = values(outcomes)
        by_group = {label: nothing if own is None else values(own) for label, own in parts.items()}
    several = isinstance(task, Task) and len(parts) > 1
    of_groups = {label: bins(own) for label, own in parts.items()} if several else {}
    return GroupReport(overall, by_group, groups.sizes, minimum_size, bins(outcomes), of_groups)
