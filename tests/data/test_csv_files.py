"""Pieces that are split say what Python's csv module says of them."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.data import csv_files
from plumbline.data.csv_files import CsvForm, read_csv
from plumbline.data.files import DataError

CELL = st.text(st.sampled_from('ab1. \t\xa0é"\x1f-,;'), max_size=4)
END = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\n \n"])
LINE = st.tuples(st.lists(CELL, min_size=2, max_size=4), END)


def as_csv(text: str, width: int, separator: str = ",") -> tuple[list[list[str]], list[int]]:
    """The rows by the csv module alone, and which of them have another number of cells."""
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, delimiter=separator)
    rows = [row for row in lines if row]
    wrong = [k for k, row in enumerate(rows) if len(row) != width]
    return [[cell.strip() for cell in row] for row in rows if len(row) == width], wrong


@given(
    lines=st.lists(LINE, min_size=1, max_size=8),
    size=st.integers(1, 4),
    separator=st.sampled_from(",;\t"),
    cut=st.booleans(),
)
def test_a_file_is_read_as_the_csv_module_reads_it(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[list[str], str]],
    size: int,
    separator: str,
    cut: bool,
) -> None:
    text = "".join(separator.join(cells) + end for cells, end in lines)
    text = text.rstrip("\r\n") if cut else text
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_bytes(f"x{separator}y{separator}z\n{text}".encode())
    rows, wrong = as_csv(text, 3, separator)
    ragged: list[int] = []
    found: list[list[str]] = []
    for piece in read_csv(path, size, CsvForm(separator=separator), ragged):
        assert list(piece) == ["x", "y", "z"]
        found += [list(row) for row in zip(*piece.values(), strict=True)]
    assert found == rows
    assert ragged == wrong


def test_most_pieces_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,x y\n" * 50 + '2,"quoted,\nover two lines"\n' + "3,z\n" * 49)
    parsed = []
    real = csv_files._parsed

    def noted(lines: list[str], more: object, separator: str) -> object:
        parsed.append(len(lines))
        return real(lines, more, separator)  # type: ignore[arg-type]

    monkeypatch.setattr(csv_files, "_parsed", noted)
    pieces = list(read_csv(path, 10, CsvForm()))
    assert parsed == [10]
    cells = [cell for piece in pieces for cell in piece["b"]]
    assert cells == ["x y"] * 50 + ["quoted,\nover two lines"] + ["z"] * 49
    assert all(pieces[place]["a"] for place in range(len(pieces)))


def test_a_row_with_more_cells_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 25 + "1,2,3\n" + "1,2\n" * 5)
    with pytest.raises(DataError, match=r"Row 26 of .* has 3 cells where the header has 2"):
        list(read_csv(path, 10, CsvForm()))


def test_a_cell_beyond_the_limit_of_the_csv_module_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1," + "x" * 200_000 + "\n")
    with pytest.raises(OSError, match=r"csv\.Error"):
        list(read_csv(path, 10, CsvForm()))
