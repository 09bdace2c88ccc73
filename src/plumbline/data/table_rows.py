"""Which rows of a table are used, and which of them are held out.

A row's cells alone decide whether it is used, and its place in the file alone on which side it is:
one row more or less, of which the others keep their places, moves no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plumbline.data.encoding import Where, check_share
from plumbline.data.files import TableError
from plumbline.data.table_cells import Reader, cut
from plumbline.data.table_counts import lacking
from plumbline.data.table_files import Table, TableChunk
from plumbline.record_random import Draws

_AT_ONCE = 2**16
"""Rows whose coins are tossed at once."""


@dataclass(frozen=True)
class TableRows:
    """Some rows of a table, in the order of the file.

    Attributes:
        table: The table.
        places: Their places in it, ``[n]``, ascending.
    """

    table: Table
    places: Tensor

    def __len__(self) -> int:
        return len(self.places)

    def where(self, chunk: TableChunk) -> Where:
        """From a place in a chunk to the row in words."""
        return lambda place: self.table.where(chunk.rows[place])

    def chunks(self) -> Iterator[TableChunk]:
        """The rows, in pieces."""
        for chunk in self.table.chunks():
            first = chunk.rows[0]
            ends = torch.tensor([first, first + len(chunk)])
            start, end = torch.searchsorted(self.places, ends).tolist()
            if end - start < len(chunk):
                chunk = chunk.keep((self.places[start:end] - first).tolist())
            if len(chunk):
                yield chunk

    def split(self, test_fraction: float, seed: int) -> tuple[TableRows, TableRows]:
        """The training and the test rows: each row has a coin of its own."""
        held = is_held_out(self.places, test_fraction, seed)
        return TableRows(self.table, self.places[~held]), TableRows(self.table, self.places[held])


def is_held_out(places: Tensor, test_fraction: float, seed: int) -> Tensor:
    """Which rows are test rows, ``[n]``."""
    check_share("test_fraction", test_fraction)
    key = f"test rows, seed {seed}"
    # Some at a time: drawing takes several times the memory of what is drawn.
    held = [Draws(some, key).uniform() < test_fraction for some in torch.split(places, _AT_ONCE)]
    return torch.cat(held)


@dataclass(frozen=True)
class LeftOut:
    """Which rows of a table are not used.

    Attributes:
        places: Their places in it, ``[n]``.
        total: How many rows the table has.
        columns: In how many rows each column lacks a value that is needed.
        other: How many rows lack none, and have a class that is not known.
        first: The column and row of the first cell that is missing, in words.
    """

    places: Tensor
    total: int
    columns: Mapping[str, int]
    other: int = 0
    first: tuple[str, str] | None = None


@dataclass(frozen=True)
class RowUse:
    """How many rows take part, counted exactly: for whoever holds the table.

    Attributes:
        total: How many rows the table has.
        left_out: How many of them take no part.
        columns: In how many rows each column lacks a value that was needed.
        other: How many rows have a class that was not found.
        filled: In how many of the rows that take part a column was filled.
        test: How many test rows take no part, and of how many.
    """

    total: int
    left_out: int
    columns: Mapping[str, int]
    other: int
    filled: Mapping[str, int]
    test: tuple[int, int]

    @property
    def sentences(self) -> Iterator[str]:
        """In words; nothing where all rows and cells are used as they are."""
        if self.left_out:
            why = [f"no value of {name} in {rows:,}" for name, rows in self.columns.items()]
            why += [f"a class that is not known in {self.other:,}"] if self.other else []
            share = 100 * self.left_out / self.total
            yield (
                f"{self.left_out:,} of {self.total:,} rows ({share:.1f} %) are left out: "
                f"{', '.join(why)}."
            )
        if filled := [f"{name} in {rows:,} rows" for name, rows in self.filled.items() if rows]:
            yield (
                "Missing cells are filled, and a feature of each column says where (--missing drop "
                f"leaves such rows out): {', '.join(filled)}."
            )

    def to_json(self) -> dict[str, int]:
        """What a result keeps: of the test rows alone, as of all that it reports."""
        left_out, rows = self.test
        return {"test_rows": rows, "left_out": left_out}


def usable(
    table: Table,
    needed: Sequence[str],
    *,
    readers: Mapping[str, Reader],
    gaps: set[str],
    classes: tuple[str, int | None, set[str]] | None = None,
) -> tuple[TableRows, LeftOut]:
    """The rows in which no needed cell is missing, and which are not used.

    Args:
        table: The table.
        needed: The columns that must have a value.
        readers: Of columns of which a cell that cannot be read counts as missing.
        gaps: What a missing cell says.
        classes: A column, how many characters of it count, and its values; rows with another value
            are left out, and not missing.
    """
    kept, lost, total, other, first = [], [], 0, 0, None
    columns: Counter[str] = Counter()
    for chunk in table.chunks():
        whole = np.ones(len(chunk), bool)
        bad = list(lacking(chunk, needed, readers, gaps))
        columns.update(name for _, name in bad)
        whole[[place for place, _ in bad]] = False
        if bad and first is None:
            place, name = min(bad, key=lambda one: one[0])
            first = name, table.where(chunk.rows[place])
        if classes is not None:
            name, prefix, values = classes
            cells = cut(chunk.columns[name], prefix)
            known = np.fromiter((cell in values for cell in cells), bool, len(chunk))
            other += int((whole & ~known).sum())
            whole &= known
        total += len(chunk)
        kept.append(torch.from_numpy(chunk.rows[0] + np.flatnonzero(whole)))
        lost.append(torch.from_numpy(chunk.rows[0] + np.flatnonzero(~whole)))
    left = LeftOut(torch.cat(lost), total, dict(columns), other, first)
    return TableRows(table, torch.cat(kept)), left


def require_complete(left: LeftOut, needed: Sequence[str]) -> None:
    """Refuses missing cells; ``needed`` are the columns that cannot be dropped."""
    if left.first is None:
        return
    name, row = left.first
    # The target is predicted, and the groups are told apart.
    column = "" if name in needed else f", or the column (--drop {name})"
    raise TableError(
        f"The column '{name}' has no value, or none of its kind, in {row}; "
        f"{len(left.places) - left.other:,} of {left.total:,} rows have such cells. Have them "
        f"filled (--missing fill), or leave out such rows (--missing drop){column}."
    )
