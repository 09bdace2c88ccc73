"""What a study is: a function from settings to measurements, by name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plumbline.experiments.pool import OnProgress


@dataclass(frozen=True)
class Measured:
    """A number of ours.

    Attributes:
        mean: Over seeds or repetitions.
        standard_error: Of the mean; NaN with a single one.
        folders: The runs it comes from.
    """

    mean: float
    standard_error: float = math.nan
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Sequence[float], folders: Sequence[str] = ()) -> Measured:
        """The mean of at least one value, and its standard error."""
        error = math.nan
        if len(values) > 1:
            error = statistics.stdev(values) / math.sqrt(len(values))
        return cls(statistics.fmean(values), error, tuple(folders))


def over_runs(name: str, values: Sequence[float]) -> Measured:
    """The mean over runs; of what is called "largest" or "smallest", the same over all runs."""
    for word, extreme in (("largest", max), ("smallest", min)):
        if name.startswith(word):
            return Measured(extreme(values))
    return Measured.of(values)


@dataclass(frozen=True)
class Measurements:
    """What a study measured, by "row / metric" or "row / metric / group".

    Attributes:
        paper: At the paper's settings.
        tuned: With every method tuned alike; empty where that has no meaning or was not done.
        notes: What a reader must know.
    """

    paper: dict[str, Measured]
    tuned: dict[str, Measured] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Study = Callable[[dict[str, Any], Path, int | None, OnProgress | None], Measurements]
STUDIES: dict[str, Study] = {}


def study(name: str) -> Callable[[Study], Study]:
    """Registers a study: of (settings, folder for runs, workers, on_progress)."""

    def register(make: Study) -> Study:
        STUDIES[name] = make
        return make

    return register
