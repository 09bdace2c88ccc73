"""Which rows of a table are used, and which of them are held out.

A row's cells alone decide whether it is used, and its place in the file alone on which side it is:
one row more or less, of which the others keep their places, moves no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from plumbline.data.encoding import Where, check_share
from plumbline.data.files import TableError
from plumbline.data.table_counts import lacking
from plumbline.data.table_files import Table, TableChunk
from plumbline.record_random import Draws


@dataclass(frozen=True)
class Rows:
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

    def split(self, test_fraction: float, seed: int) -> tuple[Rows, Rows]:
        """The training and the test rows: each row has a coin of its own."""
        check_share("test_fraction", test_fraction)
        held = Draws(self.places, f"test rows, seed {seed}").uniform() < test_fraction
        return Rows(self.table, self.places[~held]), Rows(self.table, self.places[held])


@dataclass(frozen=True)
class Gaps:
    """What is missing in a table.

    Attributes:
        rows: How many rows lack a value.
        total: Of how many.
        column: The column of the first such cell.
        row: Its row, in words.
    """

    rows: int
    total: int
    column: str
    row: str


def usable(
    table: Table,
    needed: Sequence[str],
    *,
    numeric: set[str],
    gaps: set[str],
    classes: tuple[str, set[str]] | None = None,
) -> tuple[Rows, Gaps | None]:
    """The rows in which no needed cell is missing, and what is missing in the others.

    Args:
        table: The table.
        needed: The columns that must have a value.
        numeric: Those of which a cell that is no finite number counts as missing.
        gaps: What a missing cell says.
        classes: A column and its values; rows with another value are left out, and not missing.
    """
    kept, lost, total, first = [], 0, 0, None
    for chunk in table.chunks():
        whole = np.ones(len(chunk), bool)
        bad = dict(lacking(chunk, needed, numeric, gaps))
        whole[list(bad)] = False
        if bad and first is None:
            first = bad[min(bad)], table.where(chunk.rows[min(bad)])
        lost, total = lost + len(bad), total + len(chunk)
        if classes is not None:
            name, values = classes
            whole &= np.fromiter((c in values for c in chunk.columns[name]), bool, len(chunk))
        kept.append(torch.from_numpy(chunk.rows[0] + np.flatnonzero(whole)))
    rows = Rows(table, torch.cat(kept))
    return rows, None if first is None else Gaps(lost, total, *first)


def require_complete(gaps: Gaps | None, needed: Sequence[str]) -> None:
    """Refuses missing cells; ``needed`` are the columns that cannot be dropped."""
    if gaps is None:
        return
    name = gaps.column
    ways = (
        "Fill them, say what stands for a missing value (missing_values, --missing-value), leave "
    )
    ways += 'these rows out or have cells filled (missing="drop" or "fill", --missing)'
    if name not in needed:  # the target is predicted, and the groups are told apart
        ways += f", or leave out the column (drop=[...], --drop {name})"
    raise TableError(
        f"The column '{name}' has no value, or none of its kind, in {gaps.row}; {gaps.rows:,} of "
        f"{gaps.total:,} rows have such cells. {ways}."
    )
