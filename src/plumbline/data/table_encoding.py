"""How the rows of a table become numbers: what a model trained on one needs to see new rows.

``table`` makes a ``TableEncoding`` and trains on what it gives; written to a file as plain
values and read again with ``read_encoding``, it gives the same numbers for the same cells. What of
it was taken from the training rows as they are is not covered by epsilon, and the file says so.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import TypeAdapter
from torch import Tensor

from plumbline.data.csv_files import CsvForm
from plumbline.data.encoding import check_one_of
from plumbline.data.files import DataError
from plumbline.data.table_cells import encode, texts_of
from plumbline.data.table_columns import Column
from plumbline.data.table_counts import lacking
from plumbline.data.table_files import (
    NO_HEADER,
    Table,
    TableChunk,
    TableSource,
    is_frame,
    open_table,
)
from plumbline.data.table_options import Missing

FORMAT = 4
FLAG = " (missing)"
"""How the name of the feature ends that says whether a column's cell is missing."""


@dataclass(frozen=True, kw_only=True)
class TableEncoding:
    """How rows become numbers.

    Attributes:
        target: The column that is predicted.
        classes: Its values, by number; none where it is a number itself.
        target_range: Where it is: what the model's outputs -1 and 1 stand for.
        columns: The columns that are learned from, in the order of their features.
        missing_values: What a missing cell says.
        flagged: Whether each column has a feature that says whether its cell is missing.
        form: How the cells stand in the csv file that was learned from.
        not_covered: In words, what of this was taken from the private training rows as they are.
    """

    target: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    missing_values: tuple[str, ...] = ("",)
    flagged: bool = False
    form: CsvForm = field(default_factory=CsvForm)
    not_covered: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("There is no column to learn from.")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of x's columns."""
        flags = [FLAG] if self.flagged else []
        return tuple(
            name
            for column in self.columns
            for name in (*column.features, *(f"{column.name}{flag}" for flag in flags))
        )

    @property
    def gaps(self) -> set[str]:
        """What a missing cell says."""
        return set(self.missing_values)

    def lacking(self, chunk: TableChunk) -> list[tuple[int, str]]:
        """The places of cells that are missing, or none of their kind, with their columns."""
        readers = {one.name: one.read for one in self.columns if one.read is not None}
        return list(lacking(chunk, [one.name for one in self.columns], readers, self.gaps))

    def encode(self, chunk: TableChunk) -> Tensor:
        """Rows as numbers, ``[R, features]``; what is missing is filled."""
        columns = [vars(one) for one in self.columns]
        return torch.from_numpy(encode(columns, chunk.columns, self.gaps, flagged=self.flagged))

    def texts(self, name: str, cells: Sequence[Any]) -> list[str]:
        """The cells of a DataFrame's column, or of JSON, as the file says them."""
        column: Any = next((vars(one) for one in self.columns if one.name == name), {})
        return texts_of(column, cells, decimal=self.form.decimal, missing=self.missing_values)

    def read(self, source: TableSource, *, missing: Missing = "fill") -> Tensor:
        """The rows of a table as a model sees them, ``[n, features]``.

        It needs the columns that were learned from, in any order; others are not looked at. Numbers
        outside a column's range go to its nearer end, and categories that the encoding does not
        have are all one.

        Args:
            source: A csv or parquet file, or a DataFrame.
            missing: What to do with a row in which a cell is missing, or no number in a column of
                numbers: "fill" takes the column's fill; "drop" leaves the row out; "error".

        Raises:
            DataError: For a column that is not there, or a cell that cannot be used, by name.
        """
        if is_frame(source) and not len(source):
            return torch.empty(0, len(self.features))
        rows = open_table(source, self.form, self.texts)
        found = [x for _, x in self.pieces(rows, missing=missing)]
        return torch.cat(found) if found else torch.empty(0, len(self.features))

    def pieces(
        self, table: Table, *, missing: Missing = "fill"
    ) -> Iterator[tuple[TableChunk, Tensor]]:
        """As ``read``, some rows at a time: as they are in the file, and ``[R, features]``."""
        check_one_of("missing", missing, get_args(Missing))
        names = [one.name for one in self.columns]
        absent = [repr(name) for name in names if name not in table.names]
        if absent:
            there = f"Its columns are {', '.join(table.names)}." if table.has_header else NO_HEADER
            raise DataError(
                f"{table.title} has no column {', '.join(absent)}, which the model was trained on. "
                f"{there}"
            )
        for chunk in table.chunks():
            bad = {} if missing == "fill" else dict(self.lacking(chunk))
            if bad and missing == "error":
                place = min(bad)
                raise DataError(
                    f"The column '{bad[place]}' has no value, or none of its kind, in "
                    f"{table.where(chunk.rows[place])}. Fill such cells (--missing fill), or leave "
                    "the prediction of such rows blank (--missing blank)."
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
