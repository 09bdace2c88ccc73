"""Reads csv files in pieces of columns of text: how cells stand in a file, and what they say.

A piece without a quotation mark is split at its separators, which takes a third of the time that
Python's csv module takes; any other goes through that module, whose rules hold for both.
"""

from __future__ import annotations

import codecs
import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from plumbline.data.files import DataError, TableError
from plumbline.data.table_cells import separator_of, with_points

Columns = dict[str, list[str]]
"""The cells by column, each ``[R]``."""
_BLANKS = "\t\x0b\x0c\x1c\x1d\x1e\x1f"  # of ASCII, beside spaces and ends of lines


@dataclass(frozen=True)
class CsvForm:
    """How cells stand in a csv file; declared, since rows are not to decide it.

    Attributes:
        encoding: Of its characters.
        separator: What stands between cells; by default a comma, or, where the header has none,
            the semicolon, tab or bar that it has.
        decimal: What stands before the decimals of a number. With a comma, points between groups of
            three digits are no decimal points.
    """

    encoding: str = "utf-8"
    separator: str | None = None
    decimal: str = "."

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise TableError(
                f"There is no encoding called {self.encoding!r}; common ones are utf-8, latin-1, "
                "cp1252 and utf-16."
            ) from None
        if self.separator is not None and len(self.separator) != 1:
            raise TableError(f"The separator is {self.separator!r}; it must be one character.")
        if self.decimal not in (".", ","):
            raise TableError(f"decimal is {self.decimal!r}; it must be '.' or ','.")

    @property
    def options(self) -> dict[str, str]:
        """What differs from the default, as options of ``table``."""
        return {name: value for name, value in vars(self).items() if value != vars(CsvForm())[name]}


def read_csv(
    path: Path, size: int, form: CsvForm, ragged: list[int] | None = None
) -> Iterator[Columns]:
    """The rows of a csv file, so many at a time.

    Args:
        path: The file.
        size: How many.
        form: Its form.
        ragged: Where the numbers of rows are noted that have too many or too few cells; without it
            they are an error.
    """
    plain = codecs.lookup(form.encoding).name == "utf-8"
    encoding = "utf-8-sig" if plain else form.encoding  # a byte order mark is no name
    with path.open(encoding=encoding, newline="") as stream:
        try:
            separator = form.separator or separator_of(stream.readline())
            stream.seek(0)
            names = [name.strip() for name in next(_rows(stream, separator), [])]
            twice = [place for place, name in enumerate(names, 1) if names.count(name) > 1]
            if twice:
                raise DataError(
                    f"The columns {', '.join(map(str, twice))} of {path} share their names with "
                    "others. The first row must name the columns, each differently."
                )
            done = 0
            while piece := list(itertools.islice(stream, size)):
                columns = _split(piece, separator, len(names))
                if columns is None:
                    # A blank line is no row; but if there is one column, it is a missing cell.
                    blank = [""] if len(names) == 1 else []
                    rows = [row or blank for row in _parsed(piece, stream, separator)]
                    rows = [row for row in rows if row]
                    wrong = [k for k, row in enumerate(rows) if len(row) != len(names)]
                    if wrong and ragged is None:
                        raise DataError(
                            f"Row {done + wrong[0] + 1} of {path} has {len(rows[wrong[0]])} cells "
                            f"where the header has {len(names)}: the file is damaged, or its cells "
                            "are separated otherwise (--separator)."
                        )
                    if wrong and ragged is not None:
                        ragged += [done + k for k in wrong]
                        rows = [row for row in rows if len(row) == len(names)]
                        done += len(wrong)
                    cells = zip(*rows, strict=True) if rows else ([] for _ in names)
                    columns = list(map(_stripped, cells))
                    if not rows and not wrong:  # blank lines
                        continue
                done += len(columns[0])
                if form.decimal == ",":
                    columns = list(map(with_points, columns))
                yield dict(zip(names, columns, strict=True))
        except csv.Error as error:
            raise OSError(f"csv.{type(error).__name__}") from None


def _rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    return csv.reader(lines, skipinitialspace=True, delimiter=separator)


def _parsed(lines: Sequence[str], more: Iterable[str], separator: str) -> Iterator[list[str]]:
    """The rows of some lines by the rules of csv; the last may go on in ``more``.

    A blank line is an empty row.
    """
    left = len(lines)

    def counted() -> Iterator[str]:
        nonlocal left
        for line in lines:
            left -= 1
            yield line

    for row in _rows(itertools.chain(counted(), more), separator):
        yield row
        if not left:
            return


def _split(lines: Sequence[str], separator: str, width: int) -> list[list[str]] | None:
    """The cells of some lines by column; None where that takes more than splitting them.

    That is: where a cell may be quoted, a row has more or fewer cells, a line is blank or a cell is
    longer than csv's limit.
    """
    text = "".join(lines)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if '"' in text or "\n\n" in text or text.startswith("\n"):
        return None
    if any(line.count(separator) != width - 1 for line in lines):
        return None
    if max(map(len, lines)) > csv.field_size_limit():
        return None
    flat = text.removesuffix("\n").replace("\n", separator).split(separator)
    columns = [flat[place::width] for place in range(width)]
    return columns if _is_bare(text, separator) else list(map(_stripped, columns))


def _is_bare(text: str, separator: str) -> bool:
    """Whether surely no cell of a text has blanks around it."""
    if not text.isascii() or any(blank in text for blank in _BLANKS if blank != separator):
        return False
    first, *parts = text.split(" ")
    before, ends = (first, *parts[:-1]), ("", separator, "\n")
    return not parts or not (
        any(part[-1:] in ends for part in before) or any(part[:1] in ends for part in parts)
    )


def _stripped(cells: Sequence[str]) -> list[str]:
    """The cells without blanks around them; most columns have none anywhere, which is soon seen."""
    words = "".join(cells)
    if words.split(maxsplit=1) == [words]:
        return list(cells)
    return [cell.strip() for cell in cells]
