"""What the columns of a table hold, seen once: kinds, gaps, and what cannot work.

Columns that hold text are categorical, and columns with too many values for what they are used as
are refused before anything is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from plumbline.data.files import TableError
from plumbline.data.table_files import NO_HEADER, Table
from plumbline.registry import unknown

MOST_CLASSES, MOST_GROUPS, MOST_CATEGORIES = 100, 30, 200
_ENOUGH = 2000  # different values of a column that are told apart


@dataclass
class Column:
    """Some of a column's different values, and some of those that are no numbers."""

    values: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)

    def add(self, cells: set[str]) -> None:
        """Notes some of the column's cells."""
        if len(self.values) < _ENOUGH:
            self.values.update(itertools.islice(cells, _ENOUGH))
        if len(self.words) < _ENOUGH and not _all_numbers(cells):
            self.words.update(cell for cell in cells if not _all_numbers({cell}))

    def check_size(self, name: str, most: int, use: str, advice: str) -> None:
        """Refuses a column with too many values for its use."""
        if len(self.values) <= most:
            return
        few = len(self.values) < _ENOUGH
        count = f"{len(self.values):,}" if few else f"{_ENOUGH:,} or more"
        if len(self.words) == 1:
            advice += (
                ", or, if the one word among its numbers stands for a missing one, name it "
                "(--missing-value)"
            )
        raise TableError(
            f"The column '{name}' is {use} and has {count} different values; at most {most} are "
            f"allowed. {advice}."
        )


@dataclass
class Contents:
    """What a table holds.

    Attributes:
        columns: Each column that is used.
        complete: The places of the rows in which no cell is missing, ``[n]``.
        rows: How many rows there are.
        gap: The column and row, in words, of the first missing cell, if there is one.
    """

    columns: dict[str, Column]
    complete: Tensor
    rows: int
    gap: tuple[str, str] | None

    def require_complete(self, needed: Sequence[str]) -> None:
        """Refuses a table with missing cells; ``needed`` are the columns that cannot be dropped."""
        if self.gap is None:
            return
        name, row = self.gap
        ways = 'Fill them, or leave these rows out (missing="drop", --missing drop)'
        if name not in needed:  # the target is predicted, and the groups are told apart
            ways += f", or the column (drop=[...], --drop {name})"
        raise TableError(
            f"The column '{name}' has no value in {row}; {self.rows - len(self.complete):,} of "
            f"{self.rows:,} rows have such cells. {ways}."
        )


def look(table: Table, names: Sequence[str], missing_values: Sequence[str]) -> Contents:
    """Looks at every row of a table once."""
    absent = set(missing_values)
    columns = {name: Column() for name in names}
    kept, rows, gap = [], 0, None
    for chunk in table.chunks():
        gaps: dict[int, str] = {}
        for name, column in columns.items():
            cells = set(chunk.columns[name])
            column.add(cells - absent)
            if not absent.isdisjoint(cells):
                found = (place for place, one in enumerate(chunk.columns[name]) if one in absent)
                gaps |= dict.fromkeys(found, name)
        if gaps and gap is None:
            gap = gaps[min(gaps)], table.where(chunk.rows[min(gaps)])
        whole = np.ones(len(chunk), bool)
        whole[list(gaps)] = False
        kept.append(torch.from_numpy(chunk.rows[0] + np.flatnonzero(whole)))
        rows += len(chunk)
    return Contents(columns, torch.cat(kept), rows, gap)


def check_names(table: Table, names: Sequence[str]) -> None:
    """Refuses names that no column has."""
    for name in names:
        if name not in table.names:
            if not table.has_header:
                raise TableError(f"{table.title} has no column {name!r}. {NO_HEADER}")
            words = unknown(f"column of {table.title} called", name, table.names)
            raise TableError(f"{words[0].upper()}{words[1:]}")


def _all_numbers(cells: set[str]) -> bool:
    try:
        for cell in cells:
            float(cell)
    except ValueError:
        return False
    return True
