import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline.data import table_files
from plumbline.data.base import Splits
from plumbline.data.files import DataError, TableError
from plumbline.data.tables import table

CITIES, SEXES, ANSWERS = ("Rome", "Oslo", "Lima"), "fm", ("no", "yes")
ROWS = [
    "age,city,sex,income,approved",
    *(f"{20 + k},{CITIES[k % 3]},{SEXES[k % 2]},{1000 * k},{ANSWERS[k % 2]}" for k in range(20)),
]
DECLARED: dict[str, Any] = {
    "target": "approved",
    "sensitive": "sex",
    "categories": {
        "city": ["Lima", "Oslo", "Rome"],
        "sex": ["f", "m"],
        "approved": ["no", "yes"],
    },
    "ranges": {"age": (0, 100), "income": (0, 19_000)},
    "missing": "error",  # without the features that flag what is missing
}


def written(tmp_path: Path, rows: list[str] = ROWS, name: str = "people.csv") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(rows) + "\n")
    return path


def changed(row: int, old: str, new: str) -> list[str]:
    assert old in ROWS[row]
    return [line.replace(old, new) if k == row else line for k, line in enumerate(ROWS)]


def together(splits: Splits) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All records in the order of the file, which is that of the column age."""
    parts = splits.train, splits.test
    x = torch.cat([part.x for part in parts])  # type: ignore[misc]
    order = x[:, 0].argsort()
    y = torch.cat([part.y for part in parts])
    groups = torch.cat([part.sensitive_features for part in parts])  # type: ignore[misc]
    return x[order], y[order], groups[order]


def test_a_table_with_everything_declared(tmp_path: Path) -> None:
    splits = table(written(tmp_path), **DECLARED)
    assert (len(splits.train), len(splits.test)) == (17, 3)  # a coin for each row
    assert splits.name == "people"
    assert splits.classes == ("no", "yes")
    assert splits.groups == ("f", "m")
    cities = ("city=Lima", "city=Oslo", "city=Rome", "city (other)")
    assert splits.features == ("age", *cities, "sex=f", "sex=m", "sex (other)", "income")
    x, y, groups = together(splits)
    assert y.tolist() == groups.tolist() == [0, 1] * 10
    expected = torch.tensor([(20 + 1 - 50) / 50, 0, 1, 0, 0, 0, 1, 0, (1000 - 9500) / 9500])
    torch.testing.assert_close(x[1], expected)
    assert splits.not_covered == ()
    assert [one.source for one in splits.constants] == ["public"] * 3


def test_what_is_not_declared_is_refused_or_taken_on_request(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target": "approved", "sensitive": "sex", "seed": 1}
    with pytest.raises(TableError, match="not declared: age, city, sex, income, approved"):
        table(written(tmp_path), **options)
    splits = table(written(tmp_path), from_data=True, **options)
    categories, ranges, classes = splits.not_covered
    assert categories.startswith("the categories of city, sex: computed from the training records")
    assert ranges.startswith("the lowest and highest value of age, income: computed")
    assert classes.startswith("the classes of approved: computed")
    assert splits.classes == ("no", "yes")
    assert float(splits.train.x[:, 0].min()) == -1  # type: ignore[index]
    assert float(splits.train.x[:, 0].max()) == 1  # type: ignore[index]
    assert float(splits.test.x[:, 0].abs().max()) <= 1  # type: ignore[index]


def test_some_declared_and_some_not(tmp_path: Path) -> None:
    options = DECLARED | {"ranges": {"age": (0, 100)}, "from_data": True}
    splits = table(written(tmp_path), **options)
    assert splits.not_covered == (
        "the lowest and highest value of income: computed from the training records, "
        "not covered by epsilon",
    )
    assert "the lowest and highest value of age: public constants" in map(str, splits.constants)


def test_values_beyond_a_declared_range_go_to_its_end(tmp_path: Path) -> None:
    options = DECLARED | {"ranges": {"age": (0, 100), "income": (5_000, 10_000)}}
    x, _, _ = together(table(written(tmp_path), **options))
    assert x[:, -1].tolist()[:6] == [-1] * 6
    assert x[:, -1].tolist()[10:] == [1] * 10


def test_the_sensitive_column_can_be_left_out_of_the_features(tmp_path: Path) -> None:
    splits = table(written(tmp_path), **DECLARED | {"drop": ["sex", "income"]})
    assert splits.features == ("age", "city=Lima", "city=Oslo", "city=Rome", "city (other)")
    assert splits.train.sensitive_features is not None
    assert splits.groups == ("f", "m")
    options = DECLARED | {"categories": {"sex": ["m", "f"]}, "drop": ["city"], "from_data": True}
    assert table(written(tmp_path), **options).groups == ("m", "f")


def test_a_table_without_groups(tmp_path: Path) -> None:
    splits = table(written(tmp_path), target="approved", from_data=True)
    assert splits.train.sensitive_features is None
    assert splits.groups == ()


def test_a_category_that_only_test_rows_have_is_another(tmp_path: Path) -> None:
    train = written(tmp_path, ROWS[:1] + ROWS[1:13])
    test = written(tmp_path, [ROWS[0], "50,Cairo,m,0,yes"], "later.csv")
    taken = {"target": "approved", "sensitive": "sex", "from_data": True, "missing": "error"}
    for options in (taken, DECLARED):
        splits = table(train, test=test, **options)  # type: ignore[arg-type]
        assert (len(splits.train), len(splits.test)) == (12, 1)
        assert splits.test.x[0, 1:5].tolist() == [0, 0, 0, 1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("row", "old", "new", "complaint"),
    [
        (5, ",f,", ",x,", r"'sex' has a value in row 5 of people\.csv that is none of its 2: f, m"),
        (6, "yes", "maybe", "'approved' has a value in row 6"),
        (7, "26,", "old,", "'age' has no value, or none of its kind, in row 7 .*--missing fill"),
        (7, "26,", "nan,", "'age' has no value, or none of its kind, in row 7"),
        (7, "26,", "inf,", "'age' has no value, or none of its kind, in row 7"),
        (8, "7000", "", "'income' has no value, or none of its kind, in row 8 .*1 of 20 rows"),
        (9, "Lima", " ", "'city' has no value, or none of its kind, in row 9"),
        (4, "Rome", "Rome,Oslo", "Row 4 of .* has 6 cells where the header has 5"),
    ],
)
def test_a_bad_cell_is_named_with_row_and_column(
    tmp_path: Path, row: int, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint) as error:
        table(written(tmp_path, changed(row, old, new)), **DECLARED)
    assert repr(new.strip(",")) not in str(error.value)  # no value of a record


def test_rows_with_missing_cells_can_be_left_out(tmp_path: Path) -> None:
    rows = changed(8, "7000", "?")
    rows[3] = rows[3].replace("Lima", "")
    path = written(tmp_path, rows)
    options: dict[str, Any] = {"missing": "drop", "missing_values": ["", "?"]}
    splits = table(path, **DECLARED | options)
    assert len(splits.train) + len(splits.test) == 18
    assert splits.use is not None
    assert (splits.use.total, splits.use.left_out) == (20, 2)
    assert splits.use.columns == {"city": 1, "income": 1}
    assert next(splits.use.sentences) == (
        "2 of 20 rows (10.0 %) are left out: no value of city in 1, no value of income in 1."
    )
    ages = together(splits)[0][:, 0] * 50 + 50
    assert {22, 27}.isdisjoint(ages.round().int().tolist())
    dropping = DECLARED | {"missing": "drop"}
    assert len(table(path, **dropping).train) == len(splits.train)  # no number
    everywhere = [ROWS[0], *(row.replace("Rome", "").replace("Oslo", "") for row in ROWS[1:3])]
    with pytest.raises(DataError, match="leaves 0 training"):
        table(written(tmp_path, everywhere), **dropping)


def test_a_missing_cell_in_a_dropped_column_does_not_matter(tmp_path: Path) -> None:
    rows = changed(8, "7000", "")
    options = DECLARED | {"drop": ["income"], "ranges": {"age": (0, 100)}}
    assert len(table(written(tmp_path, rows), **options).train) == 17


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"target": "aproved"}, "no column of .* called 'aproved'. Did you mean 'approved'"),
        ({"sensitive": "gender"}, "called 'gender'"),
        ({"categories": {"town": ["a"]}}, "called 'town'"),
        ({"drop": ["town"]}, "called 'town'"),
        ({"ranges": {"height": (0, 1)}}, "called 'height'"),
        ({"ranges": {"city": (0, 1)}}, "'city' is said to have categories and to be numeric"),
        ({"ranges": {"age": 5}}, "range of 'age' is 5; give two numbers"),
        ({"ranges": {"age": (5, 5)}}, r"range of 'age' is \(5, 5\); low must be below"),
        ({"categories": {"city": ["Rome", "Rome"]}}, "each once"),
        ({"categories": {"city": []}}, "each once"),
        ({"categories": {"city": "Rome"}}, "categories of 'city' are 'Rome'; give a list"),
        ({"categories": {"approved": ["no"]}}, "target 'approved' has one value only"),
        ({"ranges": {"sex": (0, 1)}, "categories": {}}, "'sex' is said to be numeric"),
        (
            {"ranges": {"approved": (0, 1)}, "categories": {}, "task": "classification"},
            "'approved' is declared with a range",
        ),
        ({"task": "guessing"}, "task is 'guessing'; it must be one of"),
        ({"missing": "skip"}, "missing is 'skip'"),
        ({"records": 0}, "records is 0; it must be a whole number"),
        ({"records": 20, "from_data": True}, "records states .* give one of the two"),
        ({"test_fraction": 2}, "test_fraction is 2"),
    ],
)
def test_options_that_make_no_sense(
    tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        table(written(tmp_path), **{**DECLARED, **options})


def test_one_name_is_no_list_of_names(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="categorical is the text 'city'"):
        table(written(tmp_path), **DECLARED | {"categorical": "city", "categories": {}})


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("people.xlsx", b"", "must end in .csv or .parquet"),
        ("people.csv", b"", "has no rows"),
        ("people.csv", b"a,b\n", "has no rows"),
        ("people.csv", b"a,b,a\n1,2,3\n", "columns 1, 3 of .* share their names"),
        ("people.csv", b"a,b\n1,\xff\n", r"not UTF-8 \(line 2\).*--encoding latin-1"),
        ("people.csv", "a,b\n1,2\n".encode("utf-16"), "--encoding utf-16"),
        ("people.parquet", b"PAR1 not really", "damaged"),
    ],
)
def test_files_that_are_no_tables(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=complaint) as error:
        table(tmp_path / name, target="a")
    assert "elete" not in str(error.value)  # a person's own file
    with pytest.raises(DataError, match="There is no file"):
        table(tmp_path / "none.csv", target="a")


def test_a_byte_that_is_not_utf8_is_found_where_it_is(tmp_path: Path) -> None:
    """Python says where it is in the piece that was being read; a person looks for the line."""
    path = tmp_path / "my people.csv"
    rows = [f"{k},Köln,yes" for k in range(5000)]
    text = "\n".join(["age,city,t", *rows, "1,"]).encode()
    path.write_bytes(text + "Köln,no\n".encode("latin1"))
    with pytest.raises(DataError, match=r"line 5,002\).*--encoding latin-1"):
        table(path, target="t", from_data=True)


@pytest.mark.parametrize(
    ("column", "droppable"), [("approved", False), ("sex", False), ("income", True)]
)
def test_only_what_can_be_dropped_is_offered_to_be(
    tmp_path: Path, column: str, droppable: bool
) -> None:
    rows = [row.split(",") for row in ROWS]
    rows[8][rows[0].index(column)] = ""
    path = written(tmp_path, [",".join(row) for row in rows])
    with pytest.raises(DataError, match=f"'{column}' has no value") as error:
        table(path, **DECLARED)
    assert ("or the column (--drop" in str(error.value)) is droppable
    assert "(--missing fill), or leave out such rows (--missing drop)" in str(error.value)
    assert f"{column}: 1 cell is missing" in str(error.value)


def test_quotes_blanks_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes('\ufeff"age", city , t\r\n1, "Rome, Italy", a\r\n\r\n2, Oslo ,b\r\n'.encode())
    splits = table(path, test=path, target="t", from_data=True, missing="error")
    assert splits.features == ("age", "city=Oslo", "city=Rome, Italy", "city (other)")


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    names, *rows = [line.split(",") for line in ROWS]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    typed = {
        name: list(map(int, cells)) if name in ("age", "income") else list(cells)
        for name, cells in columns.items()
    }
    parquet.write_table(pyarrow.table(typed), tmp_path / "people.parquet")
    ours, theirs = (
        table(path, **DECLARED) for path in (tmp_path / "people.parquet", written(tmp_path))
    )
    assert torch.equal(ours.train.x, theirs.train.x)  # type: ignore[arg-type]
    assert torch.equal(ours.test.y, theirs.test.y)
    typed["age"][4] = None
    typed["income"] = [float(value) for value in typed["income"]]
    typed["income"][5] = float("nan")
    parquet.write_table(pyarrow.table(typed), tmp_path / "people.parquet")
    with pytest.raises(DataError, match=r"'age' has no value.* in row 5 of people\.parquet; 2 of"):
        table(tmp_path / "people.parquet", **DECLARED)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'plumbline\[tables\]'"):
        table(written(tmp_path, name="people.parquet"), **DECLARED)


def test_a_test_file_may_be_the_larger_one(tmp_path: Path) -> None:
    train = written(tmp_path, ROWS[:8])
    splits = table(train, test=written(tmp_path, name="later.csv"), **DECLARED)
    assert (len(splits.train), len(splits.test)) == (7, len(ROWS) - 1)


@pytest.mark.parametrize("cells", [1, 11, 40])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_in_pieces_it_is_the_same(
    cells: int, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [line.replace("Oslo", "" if k == 5 else "Oslo") for k, line in enumerate(ROWS)]
    path = written(tmp_path, rows)
    if suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet")
        pandas = pytest.importorskip("pandas")
        path = path.with_suffix(suffix)
        pandas.read_csv(written(tmp_path, rows)).to_parquet(path)
    options = {"target": "approved", "sensitive": "sex", "from_data": True, "missing": "drop"}
    whole = table(path, **options)  # type: ignore[arg-type]
    monkeypatch.setattr(table_files, "CELLS", cells)
    pieces = table(path, **options)  # type: ignore[arg-type]
    assert (whole.classes, whole.groups, whole.features, whole.constants) == (
        pieces.classes, pieces.groups, pieces.features, pieces.constants,
    )  # fmt: skip
    for one, other in ((whole.train, pieces.train), (whole.test, pieces.test)):
        assert torch.equal(one.x, other.x)  # type: ignore[arg-type]
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.sensitive_features, other.sensitive_features)  # type: ignore[arg-type]


def test_an_option_that_there_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(ROWS))
    with pytest.raises(TypeError, match=r"no option 'sensitve'\. Did you mean 'sensitive'"):
        table(path, **DECLARED, **{"sensitve": "city"})


def test_of_a_target_and_of_groups_the_first_characters_count_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{k},{'CE'[k % 2]}{k},{'xy'[k % 3 % 2]}{k % 5}" for k in range(40)]
    path.write_text("\n".join(["age,diagnosis,ward", *rows]))
    options: dict[str, Any] = {"prefixes": {"diagnosis": 1, "ward": 1}, "ranges": {"age": (0, 40)}}
    declared = {"categories": {"diagnosis": ["C", "E"], "ward": ["x", "y"]}, **options}
    for more in (declared, {**options, "from_data": True}, {**declared, "found": ["diagnosis"]}):
        found = table(path, target="diagnosis", sensitive="ward", missing="error", **more)
        assert (found.classes, found.groups) == (("C", "E"), ("x", "y"))
        x, y, groups = found.train.x, found.train.y, found.train.sensitive_features
        assert isinstance(x, torch.Tensor)
        assert len(found.train) + len(found.test) == 40
        age = ((x[:, 0] + 1) * 20).round().long()
        assert torch.equal(y, age % 2)
        assert groups is not None
        assert torch.equal(groups, age % 3 % 2)
