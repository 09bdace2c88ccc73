"""The race: interleaved, in one process, in ratios.

A shared machine drifts by tens of per cent within a minute, so no two absolute times are compared
unless they were taken side by side. Within a round a slot of non-private steps stands before and
after every contestant's slot, and the contestant's ratio is its time over the mean of its two
neighbours. The order rotates from round to round. Reported is the median over rounds, with the
quartiles as the spread.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from scipy import stats

LEVEL = 0.95
Step = Callable[[], None]


@dataclass(frozen=True)
class Pace:
    """How long to run: rounds, seconds per slot, and what one slow contestant may take in all."""

    rounds: int = 7
    slot: float = 0.3
    warm_up: float = 1.0
    patience: float = 25.0


@dataclass
class Times:
    """Seconds per step and ratio to the neighbouring non-private steps, one entry per round."""

    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


class Race:
    """A baseline and the steps that run against it."""

    def __init__(self, baseline: Step, others: dict[str, Step], pace: Pace) -> None:
        self.pace = pace
        self.baseline = _Runner(baseline, pace)
        self.others = {name: _Runner(step, pace) for name, step in others.items()}
        self.baseline_seconds: list[float] = []
        self.times = {name: Times() for name in others}

    def round(self, number: int) -> None:
        """One slot for every contestant that still has patience left, baselines in between."""
        names = list(self.others)
        turn = number % len(names) if names else 0
        before = self._baseline()
        for name in names[turn:] + names[:turn]:
            runner = self.others[name]
            if runner.spent > self.pace.patience and self.times[name].seconds:
                continue
            seconds = runner.slot()
            after = self._baseline()
            self.times[name].seconds.append(seconds)
            self.times[name].ratios.append(2 * seconds / (before + after))
            before = after

    def _baseline(self) -> float:
        seconds = self.baseline.slot()
        self.baseline_seconds.append(seconds)
        return seconds


@dataclass(frozen=True)
class Spread:
    """Median of what was measured, and an interval: quartiles, unless another is said."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @classmethod
    def of_median(cls, values: list[float]) -> Spread:
        """The median and its interval at 95 %, which more rounds narrow, as they do not quartiles.

        Half of the values lie below the median, each by itself: how many do is binomial, so that
        it lies between the k-th smallest and the k-th largest with the probability that at least k
        do on either side. With fewer than six values no two of them are far enough apart.
        """
        k = int(stats.binom.ppf((1 - LEVEL) / 2, len(values), 0.5))
        if k == 0:
            return cls(statistics.median(values), -math.inf, math.inf)
        ordered = sorted(values)
        return cls(statistics.median(values), ordered[k - 1], ordered[-k])


class _Runner:
    """A step that has been warmed up and knows how many repetitions fill a slot."""

    def __init__(self, step: Step, pace: Pace) -> None:
        self.step = step
        # The first steps pay for compilation, kernel selection and page faults. At least three,
        # because an engine that measures its kernels may do so over several calls.
        durations = [self._time(1)]
        while len(durations) < 3 or sum(durations) < pace.warm_up:
            durations.append(self._time(1))
        self.repetitions = max(1, math.ceil(pace.slot / min(durations)))
        self.spent = 0.0

    def slot(self) -> float:
        """Seconds per step over one slot."""
        gc.collect()  # so that nobody pays for a neighbour's rubbish
        total = self._time(self.repetitions)
        self.spent += total
        return total / self.repetitions

    def _time(self, repetitions: int) -> float:
        start = time.perf_counter()
        for _ in range(repetitions):
            self.step()
        return time.perf_counter() - start
