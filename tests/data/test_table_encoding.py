"""The encoding of a table: the same numbers from its file as in training."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from plumbline.data import DataError, TableEncoding, read_encoding, table, table_files
from plumbline.data.csv_files import CsvForm
from plumbline.data.table_columns import Categorical, Dated, Hashed, Numeric, Worded

ROWS = [
    "age,city,sex,income,approved",
    *(f"{20 + k},{'RO'[k % 2]},{'fm'[k % 2]},{0.1 * k**3},{'ny'[k % 2]}" for k in range(20)),
]


def written(tmp_path: Path, rows: list[str] = ROWS, name: str = "people.csv") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(rows) + "\n")
    return path


def kept(encoding: TableEncoding | None, path: Path) -> TableEncoding:
    """Written to a file and read again."""
    assert encoding is not None
    path.write_text(json.dumps(encoding.to_json()))
    return read_encoding(path)


@pytest.mark.parametrize("declared", [False, True])
def test_the_file_gives_the_numbers_of_the_training(
    tmp_path: Path, declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"from_data": True}
    if declared:
        options = {
            "categories": {"city": ["O", "R"], "sex": ["m", "f"], "approved": ["y", "n"]},
            "ranges": {"age": (0, 100), "income": (0.1, 0.7)},
        }
    path = written(tmp_path)
    test = written(tmp_path, [*ROWS[:1], *ROWS[5:9]], "later.csv")
    splits = table(path, target="approved", sensitive="sex", test=test, **options)
    encoding = kept(splits.encoding, tmp_path / "encoding.json")
    assert encoding == splits.encoding
    assert encoding.features == splits.features
    assert encoding.classes == splits.classes
    assert encoding.not_covered == splits.not_covered
    assert bool(encoding.not_covered) is not declared
    assert torch.equal(encoding.read(path), splits.train.x)  # type: ignore[arg-type]
    monkeypatch.setattr(table_files, "CELLS", 10)  # in pieces of two rows
    assert torch.equal(encoding.read(test), splits.test.x)  # type: ignore[arg-type]


def test_what_the_encoding_does_not_have(tmp_path: Path) -> None:
    new = written(tmp_path, ["city,age", "X,1000", "R,39"], "new.csv")
    columns = Numeric("age", 20.0, 39.0, 30.0), Categorical("city", ("O", "R"))
    encoding = TableEncoding(target="y", classes=("n", "y"), columns=columns)
    assert encoding.features == ("age", "city=O", "city=R", "city (other)")
    assert encoding.read(new).tolist() == [[1, 0, 0, 1], [1, 0, 1, 0]]


def test_rows_that_lack_a_value(tmp_path: Path) -> None:
    encoding = TableEncoding(
        target="y",
        classes=("n", "y"),
        columns=(Numeric("age", 0, 2, 1.5),),
        missing_values=("", "?"),
    )
    new = written(tmp_path, ["note,age", ",1", "a,?", "b,2"], "new.csv")
    with pytest.raises(DataError, match=r"'age' has no value, or none of its kind, in row 2"):
        encoding.read(new, missing="error")
    assert encoding.read(new, missing="drop").tolist() == [[0], [1]]
    assert encoding.read(new, missing="fill").tolist() == [[0], [0.5], [1]]
    words = written(tmp_path, ["age", "old", "1"], "words.csv")
    assert encoding.read(words, missing="drop").tolist() == [[0]]
    assert encoding.read(words, missing="fill").tolist() == [[0.5], [0]]
    assert encoding.read(written(tmp_path, ["age", "?"]), missing="drop").shape == (0, 1)
    with pytest.raises(DataError, match="has no column 'age', which the model was trained on"):
        encoding.read(written(tmp_path, ["note", "a"]))
    with pytest.raises(ValueError, match="missing is 'skip'"):
        encoding.read(new, missing="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 1},
        {"classes": [1, 2]},
        {"classes": "ny"},
        {"columns": []},
        {"columns": [{"name": "age"}]},
        {"columns": [{"name": "age", "low": 2, "high": 1, "fill": 1}]},
        {"columns": [{"name": "age", "low": 0, "high": float("inf"), "fill": 1}]},
        {"columns": [{"name": "age", "low": 0, "high": 1, "fill": float("nan")}]},
        {"columns": [{"name": "age", "low": 0, "high": "1", "fill": 1}]},
        {"columns": [{"name": "city", "categories": [1]}]},
        {"missing_values": None},
    ],
    ids=str,
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    encoding = TableEncoding(target="y", classes=("n", "y"), columns=(Numeric("age", 0, 2, 1.5),))
    path = tmp_path / "encoding.json"
    path.write_text(json.dumps(encoding.to_json() | damage))
    with pytest.raises(DataError, match=r"encoding\.json is damaged, or of another version"):
        read_encoding(path)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "encoding.json"
    with pytest.raises(DataError, match=r"Cannot read .*encoding\.json: No such file"):
        read_encoding(path)
    path.write_text("{")
    with pytest.raises(DataError, match="it is not JSON"):
        read_encoding(path)


def test_a_data_frame_is_read_like_the_file(tmp_path: Path) -> None:
    """As pandas reads it: whole numbers with gaps as floats, truth values, dates of its own."""
    lines = ["age,ward,smoker,admitted,code,note"]
    lines += ["40,1,true,03.04.2021,A1,mild pain", ",2,false,,B2,", "7.5,,,31.12.2020,,none"]
    lines += ["old,3,true,2021-04-03,C3,fever", "1e3,1,maybe,25.12.2021,A1,Pain"]
    path = written(tmp_path, lines)
    low, high = 18000.0, 19000.0
    encoding = TableEncoding(
        target="y",
        classes=("n", "y"),
        columns=(
            Numeric("age", 0, 100, 40),
            Categorical("ward", ("1", "2")),
            Categorical("smoker", ("true", "false"), None, "false"),
            Dated("admitted", low, high, low, "dmy"),
            Hashed("code", 8),
            Worded("note", 16),
        ),
        flagged=True,
    )
    frame = pd.read_csv(path, dtype={"code": str}, keep_default_na=False, na_values=[""])
    frame["admitted"] = pd.to_datetime(frame["admitted"], format="%d.%m.%Y", errors="coerce")
    assert frame["ward"].dtype == float
    expected = encoding.read(path)
    assert torch.equal(encoding.read(frame), expected)
    frame["smoker"] = frame["smoker"].map({"true": True, "false": False}).fillna("maybe")
    frame.loc[2, "smoker"] = None
    assert torch.equal(encoding.read(frame), expected)
    assert encoding.read(frame.head(0)).shape == (0, expected.shape[1])
    assert encoding.read(path).shape[0] == 5  # a row for every row


def test_missing_cells_of_a_data_frame_are_those_of_the_file(tmp_path: Path) -> None:
    encoding = TableEncoding(
        target="y",
        classes=("n", "y"),
        columns=(Categorical("city", ("O", "R")), Numeric("age", 0, 2, 1)),
        missing_values=("?",),
        flagged=True,
        form=CsvForm(decimal=","),
    )
    path = written(tmp_path, ["city;age", "?;1,5", "O;?", "X;2"])
    frame = pd.DataFrame({"city": [None, "O", "X"], "age": ["1,5", None, 2]})
    assert encoding.read(path).tolist() == [
        [0, 0, 1, 1, 0.5, 0], [1, 0, 0, 0, 0, 1], [0, 0, 1, 0, 1, 0],
    ]  # fmt: skip
    assert torch.equal(encoding.read(frame), encoding.read(path))


def test_a_blank_line_of_one_column_is_a_row(tmp_path: Path) -> None:
    encoding = TableEncoding(target="y", classes=("n", "y"), columns=(Numeric("age", 0, 2, 1.5),))
    assert encoding.read(written(tmp_path, ["age", "1", "", "2"])).tolist() == [[0], [0.5], [1]]
    two = written(tmp_path, ["age,note", "1,a", "", "2,b"])
    assert encoding.read(two).tolist() == [[0], [1]]
