"""Means and standard errors across seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from plumbline.fairness.evaluating import GroupReport
from plumbline.fairness.gaps import too_small_of
from plumbline.results import Number, Undefined


@dataclass(frozen=True)
class Estimate:
    """A mean over runs.

    Attributes:
        mean: The mean.
        standard_error: The standard deviation over runs (with n - 1), divided by the root of n.
        per_run: The number of each run.
    """

    mean: Number
    standard_error: Number
    per_run: tuple[Number, ...]


def estimate(per_run: Sequence[Number]) -> Estimate:
    """The mean of one number per run, and its standard error."""
    if not per_run:
        raise ValueError("per_run is empty; give one number for each run, at least one.")
    values = tuple(_stated(value) for value in per_run)
    for number, value in enumerate(values, 1):
        if isinstance(value, Undefined):
            missing = Undefined(f"in run {number} of {len(values)}, {value.reason}")
            return Estimate(missing, missing, values)
    known = [value for value in values if not isinstance(value, Undefined)]
    error: Number = Undefined("one run has no standard error")
    if len(known) > 1:
        error = stdev(known) / math.sqrt(len(known))
    return Estimate(fmean(known), error, values)


@dataclass(frozen=True)
class SeedReport:
    """Several runs' metrics.

    Attributes:
        overall: Each metric over all records.
        by_group: Each metric by group.
        difference: Each metric's gap: the mean of the runs' gaps, not the gap of the means.
        sizes: The number of test records of each group, in the run with the fewest.
        too_small: Groups that are too small to judge in some run.
    """

    overall: Mapping[str, Estimate]
    by_group: Mapping[str, Mapping[str, Estimate]]
    difference: Mapping[str, Estimate]
    sizes: Mapping[str, int]
    too_small: tuple[str, ...]


def across_seeds(reports: Sequence[GroupReport]) -> SeedReport:
    """Means and standard errors over the runs of one method, whose test sets may differ."""
    sizes, minimum_size = common_sizes(reports)
    metrics = tuple(reports[0].overall)
    gaps = [report.difference() for report in reports]
    return SeedReport(
        overall={name: estimate([one.overall[name] for one in reports]) for name in metrics},
        by_group={
            group: {name: estimate([one.value(group, name) for one in reports]) for name in metrics}
            for group in sizes
        },
        difference={name: estimate([gap[name].value for gap in gaps]) for name in metrics},
        sizes=sizes,
        too_small=too_small_of(sizes, minimum_size),
    )


def common_sizes(reports: Sequence[GroupReport]) -> tuple[dict[str, int], int]:
    """Each group's size in the run with the fewest of it, and the largest minimum size."""
    if not reports:
        raise ValueError("There are no reports; give those of at least one run.")
    groups = dict.fromkeys(group for report in reports for group in report.sizes)
    sizes = {group: min(report.sizes.get(group, 0) for report in reports) for group in groups}
    return sizes, max(report.minimum_size for report in reports)


def _stated(value: Number) -> Number:
    """The value, or why there is none: never a NaN."""
    if isinstance(value, Undefined) or math.isfinite(value):
        return value
    return Undefined(f"the value is {value}")
