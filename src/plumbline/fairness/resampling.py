"""Resampling records: sums over many resamples at once, and percentile intervals of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plumbline.fairness.outcomes import Floats, Integers
from plumbline.fairness.results import Undefined

_CELLS = 1 << 22  # of counts that are held at a time: 32 MB


@dataclass(frozen=True)
class Interval:
    """A percentile interval.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        replicates: The resamples in which there was a value, which it is taken over.
    """

    low: float
    high: float
    replicates: int


def resampled_sums(
    generator: np.random.Generator,
    replicates: int,
    records: int,
    parts: Sequence[tuple[Integers, Floats]],
) -> list[Floats]:
    """Sums over resampled records, the same resamples for all parts.

    Args:
        generator: Where the resamples come from.
        replicates: R.
        records: n; a resample is n records, each drawn from all n.
        parts: For each part, its records ``[r]`` and their numbers ``[r, J]``.

    Returns:
        For each part, the sums over its records in each resample, ``[R, J]``.
    """
    sums: list[list[Floats]] = [[] for _ in parts]
    chunk = max(1, _CELLS // records)
    for start in range(0, replicates, chunk):
        count = min(chunk, replicates - start)
        drawn = generator.integers(records, size=(count, records))
        drawn += records * np.arange(count)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * records).reshape(count, records)
        weights = times.astype(np.float64)
        for (rows, columns), own in zip(parts, sums, strict=True):
            own.append(weights[:, rows] @ columns)
    return [np.concatenate(own) for own in sums]


def percentile_interval(values: Floats | Undefined, level: float) -> Interval | Undefined:
    """The interval of the resamples' values ``[R]``, over those that are not NaN."""
    if isinstance(values, Undefined):
        return values
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return Undefined("no resample has a value")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), len(known))


def gap_interval(groups: Sequence[Floats | Undefined], level: float) -> Interval | Undefined:
    """The interval of the largest difference between groups, of each one's values ``[R]``."""
    known = [values for values in groups if not isinstance(values, Undefined)]
    if len(known) < 2:
        return Undefined(f"{len(known)} groups are large enough and have a value; a gap needs 2")
    return percentile_interval(np.max(known, axis=0) - np.min(known, axis=0), level)


def check_level(level: float) -> None:
    """Refuses what is no coverage."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; it must be between 0 and 1, as 0.95 is.")
