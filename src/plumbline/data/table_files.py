"""Reads csv and parquet files, and DataFrames, in pieces of columns of text, with the rows' places.

Every cell is text here, as in a csv file: what a column means is the caller's to say. Missing cells
are empty text. A table is never in memory as a whole: whoever needs more than one look at it reads
it again, so that what is held depends on the columns and not on how many rows there are.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.data.files import DataError, reading

CELLS = 1 << 18  # of one piece, at most: some 15 MB of text


@dataclass(frozen=True)
class TableChunk:
    """Some rows of a table.

    Attributes:
        columns: The cells by column, each ``[R]``.
        rows: The rows' places in the file, ``[R]``, counted from 0 without the header.
    """

    columns: dict[str, list[str]]
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, places: Sequence[int]) -> TableChunk:
        """These rows only, by their places here."""
        columns = {name: [cells[k] for k in places] for name, cells in self.columns.items()}
        return TableChunk(columns, [self.rows[k] for k in places])


@dataclass(frozen=True)
class TableFile:
    """A file that is read as often as it is looked at.

    Attributes:
        path: The file.
        names: Its columns.
        title: What it is called in errors.
    """

    path: Path
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        return str(self.path)

    def chunks(self) -> Iterator[TableChunk]:
        """All rows, in pieces.

        Raises:
            DataError: If the file is damaged, or a csv row has too many or few cells.
        """
        first = 0
        with reading(None, self.path):
            for columns in _reader(self.path)(self.path, max(1, CELLS // len(self.names))):
                count = len(columns[self.names[0]])
                yield TableChunk(columns, range(first, first + count))
                first += count

    def where(self, row: int) -> str:
        """A row's place, in words."""
        return f"row {row + 1} of {self.path.name}"


@dataclass(frozen=True, eq=False)
class TableFrame:
    """A pandas DataFrame as a table of text.

    Attributes:
        frame: The DataFrame.
        title: What it is called in errors.
    """

    frame: Any
    title: str = "the DataFrame"

    @property
    def names(self) -> tuple[str, ...]:
        """Its columns."""
        return tuple(map(str, self.frame.columns))

    def chunks(self) -> Iterator[TableChunk]:
        """All rows, in pieces."""
        size = max(1, CELLS // len(self.names))
        for first in range(0, len(self.frame), size):
            piece = self.frame.iloc[first : first + size]
            columns = {
                name: ["" if gone else _text(cell) for cell, gone in zip(cells, gaps, strict=True)]
                for place, name in enumerate(self.names)
                for cells, gaps in [(piece.iloc[:, place].tolist(), piece.iloc[:, place].isna())]
            }
            yield TableChunk(columns, range(first, first + len(piece)))

    def where(self, row: int) -> str:
        """A row's place, in words."""
        return f"row {row + 1} of {self.title}"


Table = TableFile | TableFrame
TableSource = str | os.PathLike[str] | Any
"""The path of a file, or a DataFrame."""


def is_frame(data: object) -> bool:
    """Whether it is a pandas DataFrame; pandas is not imported for that."""
    kind = type(data)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def open_table(source: TableSource) -> Table:
    """A csv or parquet file, or a DataFrame.

    Raises:
        DataError: If the file cannot be read, or there are no rows.
    """
    if not is_frame(source):
        return read_table(source)
    table = TableFrame(source)
    twice = sorted({name for name in table.names if table.names.count(name) > 1})
    if not len(table.frame) or not table.names or twice:
        raise DataError(
            f"The DataFrame has more than one column called {', '.join(twice)}."
            if twice
            else "The DataFrame has no rows."
        )
    return table


def read_table(path: str | os.PathLike[str]) -> TableFile:
    """A csv or parquet file, by the ending of its name.

    Raises:
        DataError: If it is none of the two, is damaged at its beginning, or has no rows.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no file {file}. Give the path of a csv or parquet file.")
    with reading(None, file):
        start = next(_reader(file)(file, 1), None)
    if not start:
        raise DataError(f"{file} has no rows.")
    return TableFile(file, tuple(start))


Pieces = Callable[[Path, int], Iterator[dict[str, list[str]]]]


def _reader(file: Path) -> Pieces:
    readers: dict[str, Pieces] = {".csv": _read_csv, ".parquet": _read_parquet}
    if file.suffix.lower() not in readers:
        raise DataError(
            f"{file} is no table that can be read; its name must end in .csv or .parquet."
        )
    return readers[file.suffix.lower()]


def _read_csv(path: Path, size: int) -> Iterator[dict[str, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        lines = csv.reader(stream, skipinitialspace=True)
        try:
            names = [name.strip() for name in next(lines, [])]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise DataError(f"{path} has more than one column called {', '.join(twice)}.")
            _check_separator(path, names)
            done = 0
            rows = (row for row in lines if row)
            while piece := list(itertools.islice(rows, size)):
                if set(map(len, piece)) != {len(names)}:
                    place = next(k for k, row in enumerate(piece) if len(row) != len(names))
                    raise DataError(
                        f"Row {done + place + 1} of {path} has {len(piece[place])} cells where the "
                        f"header has {len(names)}: the file is damaged, or its cells are not "
                        "separated by commas."
                    )
                done += len(piece)
                cells = zip(*piece, strict=True)
                yield {name: _stripped(of) for name, of in zip(names, cells, strict=True)}
        except csv.Error as error:
            raise OSError(str(error)) from error


def _check_separator(path: Path, names: Sequence[str]) -> None:
    """Refuses a single column whose name is that of several: a table has two columns at least."""
    if len(names) != 1:
        return
    for mark, word in ((";", "';'"), ("\t", "a tab"), ("|", "'|'")):
        if mark in names[0]:
            raise DataError(
                f"{path} has a single column, called {names[0]!r}: its separator looks like "
                f"{word}, and must be a comma. Save it so (in Excel as 'CSV UTF-8 (comma "
                f"delimited)'), or convert it: pandas.read_csv({path.name!r}, sep={mark!r}).to_csv("
                f"{path.stem + '-commas.csv'!r}, index=False), with decimal=',' where numbers have "
                "a comma."
            )


def _stripped(cells: Sequence[str]) -> list[str]:
    """The cells without blanks around them; most columns have none anywhere, which is soon seen."""
    words = "".join(cells)
    if words.split(maxsplit=1) == [words]:
        return list(cells)
    return [cell.strip() for cell in cells]


def _read_parquet(path: Path, size: int) -> Iterator[dict[str, list[str]]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportError(
            "Reading parquet files needs pyarrow: pip install 'plumbline[tables]'. Or convert the "
            "file to csv."
        ) from error
    try:
        # Without a memory map: a file that is cut short must be an error, not the process's end.
        with parquet.ParquetFile(path, memory_map=False) as file:
            for batch in file.iter_batches(batch_size=size):
                names = batch.schema.names
                if batch.num_rows:
                    yield {
                        name: [_text(cell) for cell in batch.column(place).to_pylist()]
                        for place, name in enumerate(names)
                    }
    except (ArrowException, OverflowError, ValueError) as error:
        raise OSError(str(error)) from error


def _text(cell: Any) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    return cell.strip() if isinstance(cell, str) else str(cell)
