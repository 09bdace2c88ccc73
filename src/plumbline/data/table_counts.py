"""What the rows of a table hold, counted: numbers and words, categories, numbers by public bins.

Guarantee: one row adds one to at most one category of each categorical column, to one bin of each
column of numbers or dates and to the number of rows, and no row decides what another is counted as.
So for k categorical columns and m of numbers or dates all counts together move by at most
sqrt(k + m + 1) in L2 norm.

The bins are the same for every column: of numbers, between steps of 1, 1.5, 2, 3, 5 and 7 in every
decade from a millionth to 10^12, on both sides of zero; of dates, the years from 1900 to 2099.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from plumbline.data.numbers import numbers_of
from plumbline.data.table_cells import Reader, cut, missing_in
from plumbline.data.table_dates import days_of
from plumbline.data.table_files import TableChunk
from plumbline.data.table_schema import DATE, NUMBER, Column


class Bins:
    """Intervals that touch.

    Args:
        edges: Their ends, ascending.
        zero: The bin around zero, if there is one.
    """

    def __init__(self, edges: Sequence[float], zero: int | None = None) -> None:
        self.edges, self.zero = np.array(edges), zero

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The bin of each number; what lies beyond the last edge is in the last bin."""
        return np.clip(np.searchsorted(self.edges, numbers, "right") - 1, 0, len(self) - 1)

    def ends(self, place: int) -> tuple[float, float]:
        """A bin's ends; around zero, zero."""
        if place == self.zero:
            return 0.0, 0.0
        return float(self.edges[place]), float(self.edges[place + 1])


_STEPS = ("1", "1.5", "2", "3", "5", "7")
_POSITIVE = [float(f"{step}e{decade}") for decade in range(-6, 12) for step in _STEPS] + [1e12]
NUMBERS = Bins([*(-edge for edge in reversed(_POSITIVE)), *_POSITIVE], len(_POSITIVE) - 1)
YEARS = Bins(days_of([f"{year}-01-01" for year in range(1900, 2101)]).tolist())


def reader_of(column: Column) -> Reader | None:
    """How the cells of a column of numbers or dates are read; None for other columns."""
    if column.kind == DATE:
        return lambda cells: days_of(cells, column.order)
    return numbers_of if column.kind == NUMBER else None


@dataclass
class ColumnCounts:
    """One column's cells.

    Attributes:
        column: What is known of it.
        categories: How often each cell occurs that is not missing.
        bins: How many numbers are in each bin of its ``scale``, ``[bins]``.
        numbers: How many cells are numbers; of a column of dates, dates.
        low, high: The smallest and largest of them.
    """

    column: Column = field(default_factory=Column)
    categories: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    low: float = np.inf
    high: float = -np.inf

    def __post_init__(self) -> None:
        self.scale = YEARS if self.column.kind == DATE else NUMBERS
        self.bins = torch.zeros(len(self.scale), dtype=torch.float64)
        self._read = reader_of(self.column) or numbers_of

    def add(self, cells: Sequence[str], gaps: set[str]) -> None:
        """Counts some cells."""
        seen = Counter(cells)
        for gap in gaps:
            seen.pop(gap, None)
        if self.column.prefix is not None:
            starts: Counter[str] = Counter()
            for cell, number in seen.items():
                starts[cut([cell], self.column.prefix)[0]] += number
            seen = starts
        self.categories.update(seen)
        # Of each different cell once.
        times = np.fromiter(seen.values(), np.float64, len(seen))
        numbers = self._read(list(seen))
        there = ~np.isnan(numbers)
        if there.any():
            numbers, times = numbers[there], times[there]
            self.bins += torch.from_numpy(
                np.bincount(self.scale.of(numbers), times, len(self.bins))
            )
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
        numbers = self._read([cell for _, cell in found])
        return float(np.nanmedian(np.repeat(numbers, [n for n, _ in found])))

    def most_frequent(self) -> str | None:
        """The category that most cells have; of several, the first by name."""
        return max(sorted(self.categories), key=self.categories.__getitem__, default=None)


@dataclass
class Counts:
    """The rows of a table, by column.

    Attributes:
        columns: Those that were counted.
        rows: How many rows there are.
    """

    columns: dict[str, ColumnCounts]
    rows: int = 0


def count(pieces: Iterable[TableChunk], columns: Mapping[str, Column], gaps: set[str]) -> Counts:
    """Counts the cells of some columns; those that say that a value is missing are left out."""
    found = Counts({name: ColumnCounts(column) for name, column in columns.items()})
    for chunk in pieces:
        found.rows += len(chunk)
        for name, column in found.columns.items():
            column.add(chunk.columns[name], gaps)
    return found


def lacking(
    chunk: TableChunk, names: Iterable[str], readers: Mapping[str, Reader], gaps: set[str]
) -> Iterator[tuple[int, str]]:
    """The places of cells that are missing, or that a column's reader cannot read, by column."""
    for name in names:
        gone = missing_in(chunk.columns[name], gaps, readers.get(name))
        yield from ((place, name) for place in np.flatnonzero(gone).tolist())
