"""How the rows of a table become numbers: what a model trained on one needs to see new rows.

``table`` makes a ``TableEncoding`` and trains on what it gives; written to a file as plain
values and read again with ``read_encoding``, it gives the same numbers for the same cells. What of
it was taken from the training rows is not covered by epsilon, and the file says so.
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

from plumbline.data.encoding import Where, check_one_of, one_hot, to_unit_range
from plumbline.data.files import DataError
from plumbline.data.table_files import NO_HEADER, Table, TableChunk, open_table

FORMAT = 2


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, which becomes one feature.

    Attributes:
        name: The column.
        low: What becomes -1, and all below it.
        high: What becomes 1, and all above it.
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"The range of '{self.name}' is ({self.low}, {self.high}).")

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return (self.name,)

    def encode(self, cells: Sequence[str], where: Where, advice: str = "") -> Tensor:
        """The cells as numbers, ``[R, 1]``; ``advice`` ends the error for a cell that is none."""
        numbers = to_numbers(cells, self.name, where, advice)
        return to_unit_range(numbers, (self.low, self.high))[:, None]

    def unseen(self, cells: Sequence[str]) -> int:
        """How many cells are treated as another: those outside the range."""
        return sum(not self.low <= float(cell) <= self.high for cell in cells)


@dataclass(frozen=True)
class Categorical:
    """A column of categories, which becomes one feature for each.

    Attributes:
        name: The column.
        categories: The categories.
        only: Whether any other is an error; else it counts as none of them, a row of zeros.
    """

    name: str
    categories: tuple[str, ...]
    only: bool

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return tuple(f"{self.name}={value}" for value in self.categories)

    def encode(self, cells: Sequence[str], where: Where, advice: str = "") -> Tensor:
        """The cells as numbers, ``[R, categories]``."""
        if self.only:
            return one_hot(cells, self.categories, self.name, where)
        known = set(self.categories)
        cells = [cell if cell in known else " " for cell in cells]  # (No cell is a blank.)
        return one_hot(cells, [*self.categories, " "], self.name)[:, :-1]

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
        not_covered: In words, what of this was computed from the private training rows.
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

    def encode(self, chunk: TableChunk, where: Where, advice: str = "") -> Tensor:
        """Complete rows as numbers, ``[R, features]``.

        Args:
            chunk: The rows.
            where: From a place among them to the row in words.
            advice: How the error for a cell that is no number ends.
        """
        cells = chunk.columns
        return torch.cat([one.encode(cells[one.name], where, advice) for one in self.columns], 1)

    def read(
        self, path: str | os.PathLike[str], *, missing: Literal["error", "drop"] = "error"
    ) -> Tensor:
        """The rows of a csv or parquet file as a model sees them, ``[n, features]``.

        The file needs the columns that were learned from, in any order; others are not looked at.
        Numbers outside a column's range go to its nearer end. A category that the training rows had
        not counts as none, unless the categories were declared: then it is an error.

        Args:
            path: The file.
            missing: What to do with a row in which a cell is missing: "error" or "drop".

        Raises:
            DataError: For a column that is not there, or a cell that cannot be used, by name.
        """
        found = [rows for _, rows in self.pieces(open_table(path), missing=missing)]
        return torch.cat(found) if found else torch.empty(0, len(self.features))

    def pieces(
        self, table: Table, *, missing: Literal["error", "drop"] = "error"
    ) -> Iterator[tuple[TableChunk, Tensor]]:
        """As ``read``, some rows at a time: as they are in the file, and ``[R, features]``."""
        check_one_of("missing", missing, ("error", "drop"))
        names = [one.name for one in self.columns]
        absent = [repr(name) for name in names if name not in table.names]
        if absent:
            there = f"Its columns are {', '.join(table.names)}." if table.has_header else NO_HEADER
            raise DataError(
                f"{table.title} has no column {', '.join(absent)}, which the model was trained on. "
                f"{there}"
            )
        gaps = set(self.missing_values)
        for chunk in table.chunks():
            lacking = {
                place: name
                for name in names
                for place, cell in enumerate(chunk.columns[name])
                if cell in gaps
            }
            if lacking and missing == "error":
                place = min(lacking)
                raise DataError(
                    f"The column '{lacking[place]}' has no value in "
                    f"{table.where(chunk.rows[place])}. Fill such cells, or leave their rows "
                    "out (--missing drop)."
                )
            if lacking:
                chunk = chunk.keep([place for place in range(len(chunk)) if place not in lacking])
            if len(chunk):
                yield chunk, self._encoded(table, chunk)

    def _encoded(self, table: Table, chunk: TableChunk) -> Tensor:
        return self.encode(chunk, lambda place: table.where(chunk.rows[place]))

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


def to_numbers(cells: Sequence[str], name: str, where: Where, advice: str = "") -> Tensor:
    """The cells of a numeric column, ``[R]`` of float64.

    Raises:
        DataError: Naming the first row whose cell is no finite number.
    """
    try:
        numbers = np.array(list(map(float, cells)))
    except ValueError:
        numbers = np.array([math.nan])
    if not np.isfinite(numbers).all():
        place = next(place for place, cell in enumerate(cells) if not _is_finite(cell))
        raise DataError(
            f"The column '{name}' has a cell in {where(place)} that is no finite number.{advice}"
        )
    return torch.from_numpy(numbers)


def _is_finite(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
