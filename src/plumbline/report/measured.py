"""Readings summed up: what clipping did in the median reading of a method, and curves over steps.

Medians, since the relative errors of a gradient that is nearly zero grow without bound and a mean
would be theirs alone. Numbers that are undefined in a reading are left out of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from scipy import stats

from plumbline.fairness import Estimate, Undefined
from plumbline.formats import finite
from plumbline.report.reading import Run, Study


@dataclass(frozen=True)
class Bend:
    """The clipped gradient beside the true one (the plain mean), whose length is taken for one.

    Attributes:
        kept: a, how much of the true gradient is left in its own direction.
        turned: ``|c| / |g|``, how much points elsewhere.
        size: ``|g|``.
        noise: The expected squared length of one step's noise, relative to ``|g|^2``, if known.
        readings: How many readings these are the medians of.
    """

    kept: float
    turned: float
    size: float
    noise: float | None
    readings: int

    @property
    def length(self) -> float:
        """The clipped gradient's length."""
        return math.hypot(self.kept, self.turned)

    @property
    def relative(self) -> float:
        """The norm of the bias, clipped minus true, in lengths of the true gradient."""
        return math.hypot(1 - self.kept, self.turned)

    @property
    def norm(self) -> float:
        """The norm of the bias."""
        return self.relative * self.size

    @property
    def cosine(self) -> float:
        """Of the clipped gradient and the true one."""
        return self.kept / self.length if self.length else 0.0

    @property
    def degrees(self) -> float:
        """The angle between them."""
        return math.degrees(math.atan2(self.turned, self.kept))


def bend(runs: Sequence[Run], group: str | None = None, *, last: bool = False) -> Bend | None:
    """The median over the readings of a method's runs, of all records or of one group's.

    Args:
        runs: The runs.
        group: The group, if not all records.
        last: Only the last reading of each run.
    """
    kept, turned, sizes, noise = [], [], [], []
    for run in runs:
        for row in run.readings[-1:] if last else run.readings:
            found = row.get("bias") or {}
            if group is not None:
                found = found.get("by_group", {}).get(group) or {}
            a, c = finite(found.get("magnitude")), finite(found.get("relative_direction"))
            size = finite(found.get("gradient_norm"))
            if a is None or c is None or not size:
                continue
            kept.append(a)
            turned.append(c)
            sizes.append(size)
            blur = finite((row.get("errors") or {}).get("noise"))
            if blur is not None:
                noise.append(blur / size**2)
    if not kept:
        return None
    blurred = median(noise) if noise else None
    return Bend(median(kept), median(turned), median(sizes), blurred, len(kept))


@dataclass(frozen=True)
class Curve:
    """A number over steps: its mean over seeds, and its range."""

    steps: Sequence[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curve(
    rows_of_runs: Sequence[Sequence[dict[str, Any]]], of: Callable[[dict[str, Any]], Any]
) -> Curve:
    """A number of every row, over the steps that all runs have it at."""
    by_step: dict[int, list[float]] = {}
    for rows in rows_of_runs:
        for row in rows:
            if (value := finite(of(row))) is not None:
                by_step.setdefault(int(row["step"]), []).append(value)
    ordered = {step: by_step[step] for step in sorted(by_step)}
    return Curve(
        list(ordered),
        [math.fsum(values) / len(values) for values in ordered.values()],
        [min(values) for values in ordered.values()],
        [max(values) for values in ordered.values()],
    )


def mean_reading(study: Study, title: str, *path: str) -> float | None:
    """A number's mean over all readings of a method, if it was measured."""
    rows = (row for run in study.runs[title] for row in run.readings)
    known = [value for row in rows if (value := finite(at(row, *path))) is not None]
    return math.fsum(known) / len(known) if known else None


def at(value: Any, *path: str) -> Any:
    """A part of nested plain values, or None where it is not there."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def mean(estimate: Estimate) -> float | None:
    """An estimate's mean, if it has one."""
    return None if isinstance(estimate.mean, Undefined) else estimate.mean


def error(estimate: Estimate) -> float | None:
    """An estimate's standard error, if it has one."""
    return None if isinstance(estimate.standard_error, Undefined) else estimate.standard_error


def half_width(estimate: Estimate) -> float | None:
    """Half of the 95% interval of a mean over seeds, by Student's t; None with one seed."""
    spread = error(estimate)
    if spread is None:
        return None
    return float(stats.t.ppf(0.975, len(estimate.per_run) - 1)) * spread
