"""The intervals that a claim is judged by: a difference with its uncertainty, and what it shows.

A claim's parts are differences. Where both sides were measured with the same seeds, the difference
is taken seed by seed, and its interval is Student's, at 95 %; where only their means and standard
errors are known, it is of independent means, with the fewest seeds' degrees of freedom. Where a
number's bounds are known otherwise (the median of a race of step times, the largest of all
readings), the interval is what these leave.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import stats

from plumbline.experiments.papers import MINUS, PaperClaim
from plumbline.experiments.studies import Measured

LEVEL = 0.95
MOST_SEEDS = 1000
_SLACK = 1e-9


class PartVerdict(StrEnum):
    """What an interval shows of the difference that was claimed."""

    FULL = "holds"
    DIRECTION = "holds in direction"
    UNDECIDED = "undecided"
    GONE = "does not hold"
    UNDEFINED = "undefined"
    MISSING = "not measured"


@dataclass(frozen=True)
class DifferenceInterval:
    """A difference and where it lies.

    Attributes:
        mean: The difference.
        low, high: Its interval; NaN with a single seed.
        deviation: Over seeds; NaN where the interval is not from seeds.
    """

    mean: float
    low: float = math.nan
    high: float = math.nan
    deviation: float = math.nan


@dataclass(frozen=True)
class ClaimPart:
    """One inequality of a claim: ``this`` exceeds ``that`` by a margin, or some times.

    Attributes:
        this, that: Keys "row / metric", numbers, or differences of keys.
        by: The difference claimed; NaN where a ratio is.
        factor: The ratio claimed; 1 where a difference is.
    """

    this: str | float
    that: str | float
    by: float
    factor: float

    @classmethod
    def of(cls, claim: PaperClaim) -> list[ClaimPart]:
        """A claim's parts."""
        above = [cls(this, that, by, 1.0) for this, that, by in claim.above]
        return above + [cls(this, that, 0.0, factor) for this, that, factor in claim.times]

    @property
    def text(self) -> str:
        """In words."""
        if self.factor != 1:
            return f"{self.this} against {self.factor:g} times {self.that}"
        return f"{self.this} less {self.that}"

    @property
    def about(self) -> str:
        """What it is about: "loss" for losses and risks, "accuracy" for accuracies and costs."""
        loss = any(word in f"{self.this} {self.that}" for word in ("loss", "risk"))
        return "loss" if loss else "accuracy"

    def interval(
        self, values: Mapping[str, Measured], factor: float | None = None
    ) -> DifferenceInterval:
        """``this - factor x that``, with its interval."""
        times = self.factor if factor is None else factor
        return _combined([(1.0, self.this), (-times, self.that)], values)

    def shown(self, values: Mapping[str, Measured]) -> PartVerdict:
        """What was measured shows of it.

        It holds where the whole interval lies above the margin, and in direction where it lies
        above zero. It does not hold where the whole interval lies below the margin, and not above
        zero. A ratio to a negative number is undefined.
        """
        found = self.interval(values)
        if math.isnan(found.mean):
            return PartVerdict.MISSING
        if self.factor != 1 and _combined([(1.0, self.that)], values).mean < 0:
            return PartVerdict.UNDEFINED
        if found.low >= self.by - _SLACK:
            return PartVerdict.FULL
        if self._has_direction and self.interval(values, 1.0).low > 0:
            return PartVerdict.DIRECTION
        return PartVerdict.GONE if found.high < self.by else PartVerdict.UNDECIDED

    def seeds_needed(self, values: Mapping[str, Measured]) -> int | None:
        """About how many seeds would decide it, at the same mean and deviation; None if unknown."""
        found = self.interval(values)
        if math.isnan(found.deviation):
            return None
        margins = [abs(found.mean - self.by)]
        if self._has_direction and found.mean > 0:
            margins.append(found.mean)
        for seeds in range(3, MOST_SEEDS):
            if _student(seeds) * found.deviation / math.sqrt(seeds) < max(margins):
                return seeds
        return MOST_SEEDS

    @property
    def _has_direction(self) -> bool:
        """Whether less than what is claimed would still be in its direction."""
        return self.by > 0 or self.factor > 1


def _combined(
    terms: Sequence[tuple[float, str | float]], values: Mapping[str, Measured]
) -> DifferenceInterval:
    """A weighted sum of keys and numbers."""
    constant, weights = 0.0, list[tuple[float, Measured]]()
    for weight, side in terms:
        if not isinstance(side, str):
            constant += weight * side
            continue
        for place, key in enumerate(side.split(MINUS)):
            if key not in values or math.isnan(values[key].mean):
                return DifferenceInterval(math.nan)
            weights.append((weight if place == 0 else -weight, values[key]))
    mean = constant + sum(weight * one.mean for weight, one in weights)
    names = [set(one.by_seed) for _, one in weights]
    if names and all(len(own) > 1 and own == names[0] for own in names):
        paired = [
            constant + sum(weight * one.by_seed[seed] for weight, one in weights)
            for seed in weights[0][1].by_seed
        ]
        return _of_seeds(mean, statistics.stdev(paired), len(paired))
    if weights and all(one.runs > 1 for _, one in weights):
        error = math.hypot(*(weight * one.standard_error for weight, one in weights))
        runs = min(one.runs for _, one in weights)
        return _of_seeds(mean, error * math.sqrt(runs), runs)
    if all(one.bounds is not None for _, one in weights):
        ends = [sorted(weight * end for end in one.bounds or ()) for weight, one in weights]
        return DifferenceInterval(
            mean, constant + sum(e[0] for e in ends), constant + sum(e[1] for e in ends)
        )
    return DifferenceInterval(mean)


def _of_seeds(mean: float, deviation: float, seeds: int) -> DifferenceInterval:
    half = _student(seeds) * deviation / math.sqrt(seeds)
    return DifferenceInterval(mean, mean - half, mean + half, deviation)


def _student(seeds: int) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, seeds - 1))
