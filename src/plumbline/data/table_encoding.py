"""How the rows of a table become numbers: what a model trained on one needs to see new rows.

``table`` makes a ``TableEncoding`` and trains on what it gives; written to a file as plain
values and read again with ``read_encoding``, it gives the same numbers for the same cells. What of
it was taken from the training rows as they are is not covered by epsilon, and the file says so.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from plumbline.data.encoding import check_one_of, to_unit_range
from plumbline.data.files import DataError
from plumbline.data.table_counts import lacking, numbers_of
from plumbline.data.table_files import NO_HEADER, Table, TableChunk, open_table

FORMAT = 3
Missing = Literal["error", "drop", "fill"]
MISSING = ("error", "drop", "fill")


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, which becomes one feature.

    Attributes:
        name: The column.
        low: What becomes -1, and all below it.
        high: What becomes 1, and all above it.
        fill: What a missing number is taken to be, where missing ones are filled.
    """

    name: str
    low: float
    high: float
    fill: float

    def __post_init__(self) -> None:
        if not (-math.inf < self.low <= self.high < math.inf and math.isfinite(self.fill)):
            raise ValueError(f"The range of '{self.name}' is ({self.low}, {self.high}).")

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return (self.name,)

    def encode(self, cells: Sequence[str], gaps: set[str]) -> Tensor:
        """The cells as numbers, ``[R, 1]``; what is missing, or no number, is filled."""
        numbers = numbers_of(cells)
        if not gaps.isdisjoint(cells):
            numbers[[cell in gaps for cell in cells]] = np.nan
        filled = np.where(np.isnan(numbers), self.fill, numbers)
        return to_unit_range(torch.from_numpy(filled), (self.low, self.high))[:, None]

    def unseen(self, cells: Sequence[str]) -> int:
        """How many cells are treated as another: those outside the range."""
        found = numbers_of(cells)
        return int(((found < self.low) | (found > self.high)).sum())


@dataclass(frozen=True)
class Categorical:
    """A column of categories, which becomes one feature for each, and one for all other cells.

    Attributes:
        name: The column.
        categories: The categories.
    """

    name: str
    categories: tuple[str, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return (*(f"{self.name}={value}" for value in self.categories), f"{self.name} (other)")

    def encode(self, cells: Sequence[str], gaps: set[str]) -> Tensor:
        """The cells as numbers, ``[R, categories + 1]``."""
        coded = codes_or_other(cells, self.categories)
        rows = torch.zeros(len(coded), len(self.categories) + 1)
        return rows.scatter_(1, coded[:, None], 1.0)

    def unseen(self, cells: Sequence[str]) -> int:
        """How many cells count as none of the categories."""
        known = set(self.categories)
        return sum(cell not in known for cell in cells)


Column = Numeric | Categorical


@dataclass(frozen=True, kw_only=True)
class TableEncoding:
    """How rows become numbers.

    Attributes:
        target: The column that is predicted.
        classes: Its values, by number.
        columns: The columns that are learned from, in the order of their features.
        missing_values: What a missing cell says.
        not_covered: In words, what of this was taken from the private training rows as they are.
    """

    target: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    missing_values: tuple[str, ...] = ("",)
    not_covered: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("There is no column to learn from.")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of x's columns."""
        return tuple(name for column in self.columns for name in column.features)

    def encode(self, chunk: TableChunk) -> Tensor:
        """Rows as numbers, ``[R, features]``; what is missing is filled."""
        cells, gaps = chunk.columns, set(self.missing_values)
        return torch.cat([one.encode(cells[one.name], gaps) for one in self.columns], 1)

    def read(self, path: str | os.PathLike[str], *, missing: Missing = "error") -> Tensor:
        """The rows of a csv or parquet file as a model sees them, ``[n, features]``.

        The file needs the columns that were learned from, in any order; others are not looked at.
        Numbers outside a column's range go to its nearer end, and categories that the encoding does
        not have are all one.

        Args:
            path: The file.
            missing: What to do with a row in which a cell is missing, or no number in a column of
                numbers: "error"; "drop" leaves it out; "fill" takes the column's fill for a number,
                and for a category that of all others.

        Raises:
            DataError: For a column that is not there, or a cell that cannot be used, by name.
        """
        found = [rows for _, rows in self.pieces(open_table(path), missing=missing)]
        return torch.cat(found) if found else torch.empty(0, len(self.features))

    def pieces(
        self, table: Table, *, missing: Missing = "error"
    ) -> Iterator[tuple[TableChunk, Tensor]]:
        """As ``read``, some rows at a time: as they are in the file, and ``[R, features]``."""
        check_one_of("missing", missing, MISSING)
        names = [one.name for one in self.columns]
        absent = [repr(name) for name in names if name not in table.names]
        if absent:
            there = f"Its columns are {', '.join(table.names)}." if table.has_header else NO_HEADER
            raise DataError(
                f"{table.title} has no column {', '.join(absent)}, which the model was trained on. "
                f"{there}"
            )
        gaps = set(self.missing_values)
        numeric = {one.name for one in self.columns if isinstance(one, Numeric)}
        for chunk in table.chunks():
            bad = {} if missing == "fill" else dict(lacking(chunk, names, numeric, gaps))
            if bad and missing == "error":
                place = min(bad)
                raise DataError(
                    f"The column '{bad[place]}' has no value, or none of its kind, in "
                    f"{table.where(chunk.rows[place])}. Fill such cells (--missing fill), or leave "
                    "their rows out (--missing drop)."
                )
            if bad:
                chunk = chunk.keep([place for place in range(len(chunk)) if place not in bad])
            if len(chunk):
                yield chunk, self.encode(chunk)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for a file that ``read_encoding`` reads."""
        values: dict[str, Any] = _stored().dump_python(self, mode="json")
        return {"format": FORMAT, **values}


def read_encoding(path: str | os.PathLike[str]) -> TableEncoding:
    """The encoding that a run on a table has left as ``encoding.json`` beside its weights.

    Raises:
        DataError: If there is none, or it is damaged.
    """
    file = Path(path)
    try:
        stored = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"Cannot read {file}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged: it is not JSON ({error}).") from error
    if isinstance(stored, dict) and stored.pop("format", None) == FORMAT:
        with contextlib.suppress(ValueError):  # pydantic's
            return _stored().validate_json(json.dumps(stored), strict=True)
    raise DataError(
        f"{file} is damaged, or of another version: it has not the fields of an encoding of format "
        f"{FORMAT}."
    )


@cache
def _stored() -> TypeAdapter[TableEncoding]:
    return TypeAdapter(TableEncoding)


def codes_or_other(cells: Sequence[str], categories: Sequence[str]) -> Tensor:
    """The place of each cell among the categories, ``[R]``; of any other cell, the one after."""
    places = {value: place for place, value in enumerate(categories)}
    coded = [places.get(cell, len(categories)) for cell in cells]
    return torch.tensor(coded, dtype=torch.int64)
