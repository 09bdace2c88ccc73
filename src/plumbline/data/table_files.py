"""Reads csv and parquet files, and DataFrames, in pieces of columns of text, with the rows' places.

Every cell is text here, as in a csv file: what a column means is the caller's to say. Missing cells
are empty text. A table is never in memory as a whole: whoever needs more than one look at it reads
it again, so that what is held depends on the columns and not on how many rows there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from plumbline.data.csv_files import Columns, CsvForm, read_csv
from plumbline.data.files import DataError, reading
from plumbline.data.table_cells import as_text

CELLS = 1 << 15  # of one piece, at most: some 2 MB of text, which a processor keeps at hand


@dataclass(frozen=True)
class TableChunk:
    """Some rows of a table.

    Attributes:
        columns: The cells.
        rows: The rows' places in the file, ``[R]``, counted from 0 without the header.
    """

    columns: Columns
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def keep(self, places: Sequence[int]) -> TableChunk:
        """These rows only, by their places here."""
        columns = {name: [cells[k] for k in places] for name, cells in self.columns.items()}
        return TableChunk(columns, [self.rows[k] for k in places])


@dataclass(frozen=True, eq=False)
class Table:
    """A table that is read as often as it is looked at.

    Attributes:
        title: What it is called in errors.
        names: Its columns.
        pieces: Reads it, so many rows at a time.
        path: Its file, if it has one.
    """

    title: str
    names: tuple[str, ...]
    pieces: Callable[[int], Iterator[Columns]]
    path: Path | None = None

    def chunks(self) -> Iterator[TableChunk]:
        """All rows, in pieces.

        Raises:
            DataError: If the file is damaged, or a csv row has too many or few cells.
        """
        first = 0
        for columns in self.pieces(max(1, CELLS // len(self.names))):
            count = len(columns[self.names[0]])
            yield TableChunk(columns, range(first, first + count))
            first += count

    @property
    def has_header(self) -> bool:
        """Whether its first row seems to name the columns. If not, no error may repeat it."""
        return not any(map(_is_number, self.names))

    def where(self, row: int) -> str:
        """A row's place, in words."""
        return f"row {row + 1} of {self.title if self.path is None else self.path.name}"


NO_HEADER = (
    "Its first row must name the columns; some of its cells are numbers, as if it were a record."
)

TableSource = str | os.PathLike[str] | Any
"""The path of a file, or a DataFrame."""


def is_frame(data: object) -> TypeGuard[Any]:
    """Whether it is a pandas DataFrame; pandas is not imported for that."""
    kind = type(data)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


Texts = Callable[[str, Sequence[Any]], list[str]]
"""From a column's name and its cells in a DataFrame to these cells as text."""


def as_texts(name: str, cells: Sequence[Any]) -> list[str]:
    """Cells as text, of a column of which nothing is known."""
    return [as_text(cell) for cell in cells]


def open_table(source: TableSource, form: CsvForm | None = None, texts: Texts = as_texts) -> Table:
    """A csv or parquet file, by the ending of its name, or a DataFrame.

    Args:
        source: The file, or the DataFrame.
        form: Of a csv file.
        texts: How the cells of a DataFrame are read.

    Raises:
        DataError: If the file cannot be read, or there are no rows.
    """
    if is_frame(source):
        names = tuple(map(str, source.columns))
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"The DataFrame has more than one column called {', '.join(twice)}.")
        if not len(source) or not names:
            raise DataError("The DataFrame has no rows.")
        return Table("the DataFrame", names, partial(_of_frame, source, texts))
    file = existing(source)
    pieces = partial(_of_file, file, form or CsvForm())
    start = next(pieces(1), None)
    if not start:
        raise DataError(f"{file} has no rows.")
    return Table(str(file), tuple(start), pieces, file)


def existing(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there."""
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no file {file}. Give the path of a csv or parquet file.")
    return file


def _of_frame(frame: Any, texts: Texts, size: int) -> Iterator[Columns]:
    for first in range(0, len(frame), size):
        piece = frame.iloc[first : first + size]
        yield {
            str(name): texts(str(name), piece.iloc[:, place].tolist())
            for place, name in enumerate(frame.columns)
        }


def _of_file(file: Path, form: CsvForm, size: int) -> Iterator[Columns]:
    readers: dict[str, Callable[[Path, int], Iterator[Columns]]] = {
        ".csv": partial(read_csv, form=form),
        ".parquet": _read_parquet,
    }
    if file.suffix.lower() not in readers:
        raise DataError(
            f"{file} is no table that can be read; its name must end in .csv or .parquet."
        )
    with reading(None, file):
        yield from readers[file.suffix.lower()](file, size)


def _read_parquet(path: Path, size: int) -> Iterator[Columns]:
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
                        name: [as_text(cell) for cell in batch.column(place).to_pylist()]
                        for place, name in enumerate(names)
                    }
    except (ArrowException, OverflowError, ValueError) as error:
        raise OSError(f"pyarrow fails with {type(error).__name__}") from None


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
