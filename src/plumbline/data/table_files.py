"""Reads csv and parquet files into columns of text, with the rows' places for errors.

Every cell is text here, as in a csv file: what a column means is the caller's to say. Missing cells
are empty text.
"""

from __future__ import annotations

import csv
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.data.files import DataError, File, reading


@dataclass(frozen=True)
class Table:
    """Columns of text and where their rows are from.

    Attributes:
        columns: The cells by column, each ``[n]``.
        rows: The place of each row, in words, ``[n]``.
    """

    columns: dict[str, list[str]]
    rows: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, places: list[int]) -> Table:
        """The table of these rows only."""
        columns = {name: [cells[k] for k in places] for name, cells in self.columns.items()}
        return Table(columns, [self.rows[k] for k in places])


def read_table(path: str | os.PathLike[str]) -> Table:
    """A csv or parquet file, by the ending of its name.

    Raises:
        DataError: If it is none of the two, is damaged, or a csv row has too many or few cells.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no file {file}. Give the path of a csv or parquet file.")
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if file.suffix.lower() not in readers:
        raise DataError(
            f"{file} is no table that can be read; its name must end in .csv or .parquet."
        )
    with reading(File(file.name), file):
        columns = readers[file.suffix.lower()](file)
    count = len(next(iter(columns.values()))) if columns else 0
    if not count:
        raise DataError(f"{file} has no rows.")
    return Table(columns, [f"row {row + 1} of {file.name}" for row in range(count)])


def _read_csv(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream, skipinitialspace=True)
        names = [name.strip() for name in next(lines, [])]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"{path} has more than one column called {', '.join(twice)}.")
        rows = [row for row in lines if row]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise DataError(
                f"Row {number} of {path} has {len(row)} cells where the header has {len(names)}: "
                "the file is damaged, or its cells are not separated by commas."
            )
    return {name: [row[place].strip() for row in rows] for place, name in enumerate(names)}


def _read_parquet(path: Path) -> dict[str, list[str]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise ImportError(
            "Reading parquet files needs pyarrow: pip install 'plumbline[tables]'. Or convert the "
            "file to csv."
        ) from error
    try:
        table = parquet.read_table(path)
    except ArrowInvalid as error:
        raise OSError(str(error)) from error
    return {name: [_text(cell) for cell in table[name].to_pylist()] for name in table.column_names}


def _text(cell: Any) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    return cell.strip() if isinstance(cell, str) else str(cell)
