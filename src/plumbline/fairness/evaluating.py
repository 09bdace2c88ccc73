"""Metrics by group of one model, on fairlearn's MetricFrame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairlearn.metrics import MetricFrame

from plumbline.checks import check_count
from plumbline.fairness.gaps import Gap, gap_of, judged_of, too_small_of, worst_of
from plumbline.fairness.groups import MINIMUM_SIZE, Names, SensitiveFeatures, group_records
from plumbline.fairness.metrics import (
    FALSE_POSITIVE_RATE,
    METRICS,
    SELECTION_RATE,
    TRUE_POSITIVE_RATE,
    Task,
)
from plumbline.fairness.outcomes import Outcomes
from plumbline.results import Number, Undefined, to_json

NOT_COVERED = "computed from the test records without noise: not covered by epsilon"
"""Say this wherever fairness numbers are shown: epsilon covers the training records only."""

EMPTY = Undefined("the group has no records")


@dataclass(frozen=True)
class GroupReport:
    """One model's metrics, overall and by group.

    Attributes:
        overall: Each metric over all records, including those of unknown group.
        by_group: Each metric by group.
        sizes: The number of test records of each group.
        minimum_size: Groups with fewer records are not judged.
    """

    overall: Mapping[str, Number]
    by_group: Mapping[str, Mapping[str, Number]]
    sizes: Mapping[str, int]
    minimum_size: int = MINIMUM_SIZE

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
            metric.name: worst_of(self.metric(metric.name), self.judged, metric.better)
            for metric in METRICS
        }

    @property
    def demographic_parity_difference(self) -> Number:
        """The largest difference in selection rates."""
        return self.difference()[SELECTION_RATE].value

    @property
    def equalised_odds_difference(self) -> Number:
        """The larger of the differences in true and in false positive rates."""
        gaps = self.difference()
        values = [gaps[name].value for name in (TRUE_POSITIVE_RATE, FALSE_POSITIVE_RATE)]
        for value in values:
            if isinstance(value, Undefined):
                return value
        return max(value for value in values if not isinstance(value, Undefined))

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
            "privacy": NOT_COVERED,
        }
        return {name: to_json(part) for name, part in parts.items()}


def evaluate(
    outcomes: Outcomes,
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
    task = Task.of(outcomes, positive)

    # MetricFrame unpacks a group's columns for every metric, so all metrics are one function. The
    # row numbers say which losses and scores belong to the labels and predictions it passes.
    def metrics(y_true: Any, y_pred: Any, rows: Any) -> tuple[Number, ...]:
        own = outcomes.take(rows)
        return tuple(metric(own, task) for metric in METRICS)

    frame = MetricFrame(
        metrics=metrics,
        y_true=outcomes.labels,
        y_pred=outcomes.predictions,
        sensitive_features=groups.codes,
        sample_params={"rows": np.arange(len(outcomes))},
    )
    nothing = (EMPTY,) * len(METRICS)
    by_group = {
        label: _by_name(frame.by_group.get(code, nothing))
        for code, label in enumerate(groups.labels)
    }
    return GroupReport(_by_name(frame.overall), by_group, groups.sizes, minimum_size)


def _by_name(values: tuple[Number, ...]) -> dict[str, Number]:
    return {metric.name: value for metric, value in zip(METRICS, values, strict=True)}
