"""How far the cost of privacy would move with another test set: bootstrap percentile intervals.

The expectations of paper 004's Eqs. 1 and 2 are taken over the runs first, record by record; then
records are resampled. The intervals hold the trained models fixed; the standard errors of ``Cost``
hold the test set fixed and speak of the training's randomness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plumbline.checks import check_count
from plumbline.fairness.gaps import judged_of, too_small_of
from plumbline.fairness.groups import MINIMUM_SIZE, Names, SensitiveFeatures, group_records
from plumbline.fairness.outcomes import Floats, Outcomes
from plumbline.fairness.resampling import (
    Interval,
    check_level,
    gap_interval,
    percentile_interval,
    resampled_sums,
)
from plumbline.fairness.results import EMPTY, Undefined


@dataclass(frozen=True)
class CostIntervals:
    """The intervals of the cost of privacy.

    Attributes:
        privacy_cost: By group, of pi_k.
        privacy_cost_gap: Of the largest difference between groups that are large enough.
        excessive_risk: By group, of R_k.
        excessive_risk_gap: Of its largest difference.
        level: The intervals' nominal coverage.
        too_small: Groups that are too small to judge.
    """

    privacy_cost: Mapping[str, Interval | Undefined]
    privacy_cost_gap: Interval | Undefined
    excessive_risk: Mapping[str, Interval | Undefined]
    excessive_risk_gap: Interval | Undefined
    level: float
    too_small: tuple[str, ...]


def bootstrap_cost(
    private: Sequence[Outcomes],
    nonprivate: Sequence[Outcomes],
    *,
    sensitive_features: SensitiveFeatures,
    generator: np.random.Generator,
    names: Names | None = None,
    minimum_size: int = MINIMUM_SIZE,
    replicates: int = 1000,
    level: float = 0.95,
) -> CostIntervals:
    """Intervals for what ``privacy_cost`` gives, of runs tested on the same n records.

    Args:
        private: The outcomes of the private runs.
        nonprivate: Those of the non-private runs.
        sensitive_features: Each record's group, ``[n]``, or several features by name.
        generator: Where the resamples come from.
        names: The groups' names, as in ``evaluate``.
        minimum_size: Groups with fewer records are too small to judge.
        replicates: The number of resamples.
        level: The nominal coverage.
    """
    check_count("replicates", replicates)
    check_count("minimum_size", minimum_size)
    check_level(level)
    _check_same_records(private, nonprivate)
    records = len(private[0])
    groups = group_records(sensitive_features, records, names)
    rows = [groups.rows(label) for label in groups.labels]
    columns = np.column_stack([_lost_accuracy(private, nonprivate), _risk(private, nonprivate)])
    # Every record's two costs, and a one to count it by.
    counted = np.column_stack([columns, np.ones(records)])
    sums = resampled_sums(generator, replicates, records, [(own, counted[own]) for own in rows])
    judged = judged_of(groups.sizes, minimum_size)

    def intervals(column: int) -> tuple[dict[str, Interval | Undefined], Interval | Undefined]:
        values = {
            label: _values(columns[own, column], drawn[:, column], drawn[:, -1])
            for label, own, drawn in zip(groups.labels, rows, sums, strict=True)
        }
        by_group = {label: percentile_interval(own, level) for label, own in values.items()}
        return by_group, gap_interval([values[label] for label in judged], level)

    too_small = too_small_of(groups.sizes, minimum_size)
    return CostIntervals(*intervals(0), *intervals(1), level, too_small)


def _lost_accuracy(private: Sequence[Outcomes], nonprivate: Sequence[Outcomes]) -> Floats:
    """Each record's part of pi, ``[n]``: the share of runs that have it right."""
    shares = [np.mean([run.correct for run in runs], axis=0) for runs in (nonprivate, private)]
    return np.asarray(shares[0] - shares[1], np.float64)


def _risk(private: Sequence[Outcomes], nonprivate: Sequence[Outcomes]) -> Floats:
    """Each record's part of R, ``[n]``; NaN where a run has no finite loss."""
    total = np.zeros(len(private[0]))
    for runs, sign in ((private, 1), (nonprivate, -1)):
        for run in runs:
            losses = np.full(len(run), np.nan) if run.losses is None else run.losses
            total += sign / len(runs) * np.where(np.isfinite(losses), losses, np.nan)
    return total


def _values(own: Floats, sums: Floats, counts: Floats) -> Floats | Undefined:
    """A group's cost in each resample, ``[R]``, or why it has none."""
    if len(own) == 0:
        return EMPTY
    if (missing := int(np.isnan(own).sum())) > 0:
        return Undefined(f"{missing} of {len(own)} records have no finite loss in some run")
    with np.errstate(invalid="ignore"):
        quotients: Floats = sums / counts
    return quotients


def _check_same_records(private: Sequence[Outcomes], nonprivate: Sequence[Outcomes]) -> None:
    if not private or not nonprivate:
        raise ValueError(
            f"There are {len(private)} private and {len(nonprivate)} non-private runs; the cost of "
            "privacy needs at least one of each."
        )
    for run in (*private, *nonprivate):
        if not np.array_equal(run.labels, private[0].labels):
            raise ValueError(
                "The runs' labels differ, so they were tested on different records. Records can be "
                "resampled only if all runs have the same ones, in the same order."
            )
