"""csv files of other forms give the same cells as plain ones."""

from pathlib import Path

import pandas as pd
import pytest

from plumbline.data import table
from plumbline.data.csv_files import CsvForm
from plumbline.data.files import DataError, TableError
from plumbline.data.table_files import open_table
from plumbline.data.table_look import look_at

ROWS = [
    ["größe", "stadt", "code", "t"],
    ["1,5", "Zürich", "1.234", "ja"],
    ["-2", "Köln, Rhein", "12.345,6", "nein"],
    ["1,5e3", "1.2.3", "3.4.2021", "ja"],
]
PLAIN = {
    "größe": ["1.5", "-2", "1.5e3"],
    "stadt": ["Zürich", "Köln, Rhein", "1.2.3"],
    "code": ["1234", "12345.6", "3.4.2021"],
    "t": ["ja", "nein", "ja"],
}


def cells(path: Path, form: CsvForm) -> dict[str, list[str]]:
    opened = open_table(path, form)
    assert opened.names == tuple(PLAIN)
    (chunk,) = opened.chunks()
    return chunk.columns


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_decimal_commas_separators_and_encodings(
    tmp_path: Path, encoding: str, separator: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("\r\n".join(map(separator.join, ROWS)).encode(encoding))
    form = CsvForm("utf-8" if encoding == "utf-8-sig" else encoding, decimal=",")
    assert cells(path, form) == PLAIN
    assert cells(path, CsvForm(form.encoding, separator, ",")) == PLAIN


def test_without_a_decimal_comma_cells_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(map(";".join, ROWS)))
    assert cells(path, CsvForm())["größe"] == ["1,5", "-2", "1,5e3"]


def test_a_header_with_commas_needs_its_separator_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a, b;c\n1;2\n3;4\n")
    with pytest.raises(DataError, match="separated otherwise"):
        list(open_table(path).chunks())
    assert open_table(path, CsvForm(separator=";")).names == ("a, b", "c")
    assert "say how cells are separated (--separator)" in look_at(path).in_the_way()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoding": "utf8x"}, "no encoding called 'utf8x'; common ones are"),
        ({"separator": ";;"}, "it must be one character"),
        ({"decimal": "'"}, r"it must be '\.' or ','"),
    ],
)
def test_forms_that_make_no_sense(options: dict[str, str], words: str) -> None:
    with pytest.raises(TableError, match=words):
        CsvForm(**options)


def test_a_form_is_of_csv_files_only(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "t": ["x", "y"]})
    with pytest.raises(TableError, match="decimal describes a csv file; the DataFrame is none"):
        table(frame, target="t", decimal=",", from_data=True)


def test_a_file_that_is_not_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a,b\n1,Zürich\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not ascii; give the encoding"):
        open_table(path, CsvForm("ascii"))
