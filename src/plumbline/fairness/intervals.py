"""How far the metrics would move with another test set: bootstrap percentile intervals.

Records are drawn with replacement from all test records, groups and classes as they come, and every
metric and gap is computed again. The intervals speak of the test set's randomness for one trained
model, not of the training's: that is what seeds are for. A gap is never negative, so the interval
of one that is zero in truth lies above zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from plumbline.checks import check_count
from plumbline.fairness.gaps import judged_of, too_small_of
from plumbline.fairness.groups import MINIMUM_SIZE, Names, SensitiveFeatures, group_records
from plumbline.fairness.metrics import METRICS, Task
from plumbline.fairness.outcomes import Floats, Integers, Outcomes
from plumbline.fairness.resampling import (
    Interval,
    check_level,
    gap_interval,
    percentile_interval,
    resampled_sums,
)
from plumbline.fairness.results import EMPTY, Undefined


@dataclass(frozen=True)
class Intervals:
    """The intervals of a model's metrics.

    Attributes:
        overall: By metric.
        by_group: By group, by metric.
        difference: By metric, of the largest difference between groups that are large enough.
        level: The intervals' nominal coverage.
        too_small: Groups that are too small to judge.
    """

    overall: Mapping[str, Interval | Undefined]
    by_group: Mapping[str, Mapping[str, Interval | Undefined]]
    difference: Mapping[str, Interval | Undefined]
    level: float
    too_small: tuple[str, ...]


def bootstrap(
    outcomes: Outcomes,
    *,
    sensitive_features: SensitiveFeatures,
    generator: np.random.Generator,
    names: Names | None = None,
    positive: int = 1,
    minimum_size: int = MINIMUM_SIZE,
    replicates: int = 1000,
    level: float = 0.95,
) -> Intervals:
    """Intervals for what ``evaluate`` gives.

    Args:
        outcomes: What a model did on n test records.
        sensitive_features: Each record's group, ``[n]``, or several features by name.
        generator: Where the resamples come from.
        names: The groups' names, as in ``evaluate``.
        positive: The positive class.
        minimum_size: Groups with fewer records are too small to judge.
        replicates: The number of resamples.
        level: The nominal coverage.
    """
    check_count("replicates", replicates)
    check_count("minimum_size", minimum_size)
    check_level(level)
    groups = group_records(sensitive_features, len(outcomes), names)
    task = Task.of(outcomes, positive)
    everyone = np.arange(len(outcomes))
    parts = [_Part(outcomes, everyone, task)]
    parts += [_Part(outcomes, groups.rows(label), task) for label in groups.labels]
    sums = resampled_sums(
        generator, replicates, len(outcomes), [(part.rows, part.columns) for part in parts]
    )
    overall, *others = [part.values(own) for part, own in zip(parts, sums, strict=True)]
    by_group = dict(zip(groups.labels, others, strict=True))
    judged = judged_of(groups.sizes, minimum_size)
    return Intervals(
        overall={name: percentile_interval(own, level) for name, own in overall.items()},
        by_group={
            group: {name: percentile_interval(own, level) for name, own in values.items()}
            for group, values in by_group.items()
        },
        difference={
            name: gap_interval([by_group[group][name] for group in judged], level)
            for name in overall
        },
        level=level,
        too_small=too_small_of(groups.sizes, minimum_size),
    )


class _Part:
    """A group's records, and beside each other the numbers that the metrics sum, ``[r, J]``."""

    def __init__(self, outcomes: Outcomes, rows: Integers, task: Task) -> None:
        self.rows = rows
        self.why_not: dict[str, Undefined] = {}
        columns = {}
        own = outcomes.take(rows) if len(rows) else None
        for metric in METRICS:
            if own is None:
                self.why_not[metric.name] = EMPTY
            elif (reason := metric.why_not(own, task)) is not None:
                self.why_not[metric.name] = Undefined(reason)
            else:
                columns[metric.name] = metric.columns(own, task)
        self.columns: Floats = np.concatenate([np.zeros((len(rows), 0)), *columns.values()], axis=1)
        ends = np.cumsum([values.shape[1] for values in columns.values()], dtype=int).tolist()
        self.places = dict(zip(columns, map(slice, [0, *ends], ends), strict=True))

    def values(self, sums: Floats) -> dict[str, Floats | Undefined]:
        """By metric its value in each resample, ``[R]``, of the sums ``[R, J]``."""
        return {
            metric.name: metric.combine(sums[:, self.places[metric.name]])
            if metric.name in self.places
            else self.why_not[metric.name]
            for metric in METRICS
        }
