"""What the rows of a table hold, counted: numbers and words, categories, numbers by public bins.

Guarantee: one row adds one to at most one category of each categorical column, to one bin of each
numeric column and to the number of rows, and no row decides what another is counted as. So for k
categorical and m numeric columns all counts together move by at most sqrt(k + m + 1) in L2 norm.

The bins are the same for every column: between steps of 1, 1.5, 2, 3, 5 and 7 in every decade from
a millionth to 10^12, on both sides of zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from plumbline.data.table_files import TableChunk

_STEPS = ("1", "1.5", "2", "3", "5", "7")
_POSITIVE = [float(f"{step}e{decade}") for decade in range(-6, 12) for step in _STEPS] + [1e12]
EDGES = np.array([*(-edge for edge in reversed(_POSITIVE)), *_POSITIVE])
"""The bins' edges, ascending; the two in the middle enclose zero."""
BINS = len(EDGES) - 1
ZERO = len(_POSITIVE) - 1
"""The bin around zero."""


def bins_of(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The bin of each number; what lies beyond the last edge is in the last bin."""
    return np.clip(np.searchsorted(EDGES, numbers, "right") - 1, 0, BINS - 1)


def ends_of(place: int) -> tuple[float, float]:
    """A bin's ends; around zero, zero."""
    return (0.0, 0.0) if place == ZERO else (float(EDGES[place]), float(EDGES[place + 1]))


def numbers_of(cells: Sequence[str]) -> npt.NDArray[np.float64]:
    """The cells as numbers, ``[R]``; NaN where a cell is no finite number."""
    try:
        numbers = np.array(list(map(float, cells)), np.float64)
    except ValueError:
        numbers = np.array([_number(cell) for cell in cells], np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


@dataclass
class ColumnCounts:
    """One column's cells.

    Attributes:
        categories: How often each cell occurs that is not missing.
        bins: How many numbers are in each bin, ``[BINS]``.
        numbers: How many cells are numbers.
        low, high: The smallest and largest number.
    """

    categories: Counter[str] = field(default_factory=Counter)
    bins: Tensor = field(default_factory=lambda: torch.zeros(BINS, dtype=torch.float64))
    numbers: int = 0
    low: float = np.inf
    high: float = -np.inf

    def add(self, cells: Sequence[str], gaps: set[str]) -> None:
        """Counts some cells."""
        seen = Counter(cells)
        for gap in gaps:
            seen.pop(gap, None)
        self.categories.update(seen)
        # Of each different cell once.
        times = np.fromiter(seen.values(), np.float64, len(seen))
        numbers = numbers_of(list(seen))
        there = ~np.isnan(numbers)
        if there.any():
            numbers, times = numbers[there], times[there]
            self.bins += torch.from_numpy(np.bincount(bins_of(numbers), times, BINS))
            self.numbers += int(times.sum())
            self.low = min(self.low, float(numbers.min()))
            self.high = max(self.high, float(numbers.max()))

    @property
    def words(self) -> int:
        """How many cells are no numbers."""
        return self.categories.total() - self.numbers

    def median(self) -> float:
        """The exact median of the numbers."""
        found = [(n, cell) for cell, n in self.categories.items()]
        numbers = numbers_of([cell for _, cell in found])
        return float(np.nanmedian(np.repeat(numbers, [n for n, _ in found])))


@dataclass
class Counts:
    """The rows of a table, by column.

    Attributes:
        columns: Those that were counted.
        rows: How many rows there are.
    """

    columns: dict[str, ColumnCounts]
    rows: int = 0


def count(pieces: Iterable[TableChunk], names: Iterable[str], gaps: set[str]) -> Counts:
    """Counts the cells of some columns; those that say that a value is missing are left out."""
    found = Counts({name: ColumnCounts() for name in names})
    for chunk in pieces:
        found.rows += len(chunk)
        for name, column in found.columns.items():
            column.add(chunk.columns[name], gaps)
    return found


def lacking(
    chunk: TableChunk, names: Iterable[str], numeric: set[str], gaps: set[str]
) -> Iterator[tuple[int, str]]:
    """The places of cells that are missing, or no number in a numeric column, by column."""
    for name in names:
        cells = chunk.columns[name]
        if name in numeric:
            bad = np.flatnonzero(np.isnan(numbers_of(cells))).tolist()
            known = set(bad)
        else:
            bad, known = [], set()
        if not gaps.isdisjoint(cells):
            bad += [k for k, cell in enumerate(cells) if cell in gaps and k not in known]
        yield from ((place, name) for place in bad)
