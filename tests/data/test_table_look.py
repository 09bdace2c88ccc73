"""One look at a table: what columns are taken for, what stands in the way, what to do."""

import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from plumbline.data import table
from plumbline.data.csv_files import CsvForm
from plumbline.data.files import DataError, TableError, data_folder
from plumbline.data.table_look import TableLook, look_at
from plumbline.data.table_schema import declared
from plumbline.data.table_tally import KEPT
from plumbline.data.tables import described
from tests.data.clinic import NAMES, OPTIONS, clinic


def written(path: Path, *columns: list[str], names: str = "abcdefgh") -> Path:
    rows = [",".join(cells) for cells in zip(*columns, strict=True)]
    path.write_text("\n".join([",".join(names[: len(columns)]), *rows]) + "\n")
    return path


def column(tmp_path: Path, cells: list[str], **options: Any) -> Any:
    """What a column of these cells is taken for, beside one of numbers."""
    other = [f"{k % 7}.5" for k in range(len(cells))]
    return look_at(written(tmp_path / "t.csv", cells, other), **options).columns[0]


def kinds(look: TableLook) -> dict[str, str]:
    return {one.name: one.kind for one in look.columns}


def test_every_kind_of_column(tmp_path: Path) -> None:
    look = look_at(clinic(tmp_path / "clinic.csv"), target="died", sensitive=["sex"])
    expected = (
        "id", "date", "number", "number", "category", "yes or no", "code", "text", "constant",
        "category", "yes or no",
    )  # fmt: skip
    assert kinds(look) == dict(zip(NAMES, expected, strict=True))
    assert look.rows == 3000
    missing = {one.name: one.missing for one in look.columns if one.missing}
    assert set(missing) == {"weight", "ward", "smoker"}
    assert 0.01 < look.classes["yes"] / look.rows < 0.05
    wrong = {one.name for one in look.columns if one.wrong}
    assert wrong == {"patient", "admitted", "age", "diagnosis", "notes", "site"}
    words = shlex.split(look.command.replace("notes=1024", "notes=128"))
    for option, value in zip(OPTIONS[::2], OPTIONS[1::2], strict=True):
        assert words[words.index(value) - 1] == option


def test_what_it_proposes_leaves_no_obstacle(tmp_path: Path) -> None:
    path = clinic(tmp_path / "clinic.csv")
    look = look_at(path, target="died", sensitive=["sex"])
    stated = declared(schema=look.schema)
    again = look_at(
        path, target="died", schema=stated, missing_values=["", "NA"], drop=["patient", "site"]
    )
    assert again.in_the_way() == ""
    splits = table(
        path,
        target="died",
        schema=stated,
        drop=["patient", "site"],
        missing_values=["", "NA"],
        from_data=True,
    )
    assert "admitted month (sine)" in splits.features
    assert "diagnosis (hash 63)" in splits.features
    assert "weight (missing)" in splits.features


def test_a_table_that_is_taken_as_it_is_tells_all_obstacles(tmp_path: Path) -> None:
    path = clinic(tmp_path / "clinic.csv")
    with pytest.raises(TableError) as error:
        table(path, target="died", sensitive="sex", from_data=True)
    words = str(error.value)
    for name in ("patient", "admitted", "age", "diagnosis", "notes", "site"):
        assert f"- {name}: " in words
    assert "--date admitted=dmy" in words
    assert words.endswith("--drop patient,site")
    for cell in ("P0000001", "A1", "mild", "main"):  # nothing of the rows
        assert f"{cell} " not in words
    with pytest.raises(TableError) as error:
        table(pd.read_csv(path), target="died", sensitive="sex", from_data=True)
    assert "- diagnosis: " in str(error.value)


DAYS = [f"{k % 28 + 1:02d}" for k in range(60)]


@pytest.mark.parametrize(
    ("cells", "kind", "words"),
    [
        ([f"2021-03-{day}" for day in DAYS], "date", "--date a."),
        ([f"{day}.03.2021" for day in DAYS], "date", "--date a=dmy."),
        ([f"03/{day}/2021" for day in DAYS], "date", "--date a=mdy."),
        ([f"03/0{k % 9 + 1}/2021" for k in range(60)], "date", "or a=mdy where the month"),
        ([f"202103{day}" for day in DAYS], "date", "--date a."),
        ([f"{k},5" for k in range(60)], "number", "--decimal ,"),
        ([str(k) for k in range(1000, 1060)], "id", "--drop a."),
        ([f"u{k:x}f" for k in range(60)], "id", "--drop a."),
        ([str(37 * k % 50) for k in range(60)], "number", ""),
        ([str(k % 12) for k in range(60)], "number", ""),
        (["1110", "1132", "1210"] * 20, "category", "If so: --categorical a."),
        ([f"{k / 7:.3f}" for k in range(60)], "number", ""),
        (["5", "old"] + ["6"] * 58, "number", "--categorical a."),
        (["5", "N/A", "?"] + ["6"] * 57, "number", "--missing-value N/A --missing-value '?'"),
        (["null", "x"] + ["y"] * 58, "category", "--missing-value null"),
        (["none", "x"] + ["y"] * 58, "category", ""),
        (["Yes", "no"] * 30, "yes or no", ""),
        (["1", "0"] * 30, "yes or no", ""),
        (["x"] * 60, "constant", "--drop a."),
        ([""] * 60, "empty", "--drop a."),
        ([f"a rather long note {k}" for k in range(60)], "text", "--text a=1024"),
        ([f"ICD{k % 250}" for k in range(600)], "code", "--prefix a=3"),
    ],
)
def test_what_a_column_is_taken_for(
    tmp_path: Path, cells: list[str], kind: str, words: str
) -> None:
    cells = [f'"{cell}"' for cell in cells]
    found = column(tmp_path, cells)
    assert (found.kind, bool(found.wrong)) == (kind, bool(words))
    assert words in found.advice


def test_more_values_than_are_kept(tmp_path: Path) -> None:
    count = 3 * KEPT
    numbers = [f"{k * 0.37:.2f}" for k in range(count)]
    numbers[-1], numbers[-2] = "", "old"
    codes = [f"c{k * k % (KEPT + 900)}" for k in range(count)]
    look = look_at(
        written(tmp_path / "t.csv", [str(k) for k in range(count)], numbers, codes, codes)
    )
    number, measured, code, _ = look.columns
    assert (number.kind, number.different) == ("id", None)
    assert (measured.kind, measured.missing) == ("number", 1)
    assert measured.wrong == "1 of its cells is no number"
    assert code.kind == "code"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["no"] * 60, "the target has one value only"),
        ([f"w{k}" for k in range(120)], "120 different values, which are no classes"),
        (["low", "high", ""] * 20, "20 rows lack the target"),
    ],
)
def test_targets(tmp_path: Path, cells: list[str], words: str) -> None:
    found = column(tmp_path, cells, target="a")
    assert words in found.wrong
    assert not found.options


def test_what_is_declared_of_targets(tmp_path: Path) -> None:
    amounts = column(tmp_path, [f"{k}.5" for k in range(120)], target="a")
    assert "120 different numbers, which are no classes" in amounts.wrong
    assert amounts.options == (("--task", "regression"),)
    lacking = column(tmp_path, ["ja", "nein", ""] * 20, target="a")
    assert lacking.wrong == "20 rows lack the target"
    assert lacking.options == (("--categories", "a=nein,ja"),)  # the second class is the positive


def test_a_table_that_no_option_mends_has_no_command_to_go_on_with(tmp_path: Path) -> None:
    ages = [str(20 + k % 50) for k in range(120)]

    def stuck(classes: list[str], *, target: str = "b") -> bool:
        return look_at(written(tmp_path / "t.csv", ages, classes), target=target).stuck

    assert stuck(["no"] * 120)
    assert stuck(["no", "no,maybe"] * 60)  # ragged
    assert stuck([f"g{k}" for k in range(120)])
    assert not stuck(["no", "yes"] * 60)
    assert not stuck(["no", "yes"] * 60, target="a")  # its numbers are classes


def test_all_that_is_wrong_with_a_column_of_numbers_is_said_at_once(tmp_path: Path) -> None:
    found = column(tmp_path, [*map(str, range(60)), "n/a", "n/a", "fourty"])
    assert found.wrong == (
        "some cells say n/a, as if a value were missing, and 1 of its cells is no number, which "
        "counts as missing too"
    )
    assert found.options == (("--missing-value", "n/a"),)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["f", "m"] * 60 + ["x"], "1 of its groups has fewer than 30 rows (the smallest 1)"),
        ([f"g{k % 40}" for k in range(400)], "it has 40 groups, and at most 30"),
        (["f"] * 60 + [""], "1 row lacks the group"),
        (["f", "m"] * 60, ""),
    ],
)
def test_groups(tmp_path: Path, cells: list[str], words: str) -> None:
    assert column(tmp_path, cells, sensitive=["a"]).wrong.startswith(words)


def test_a_declared_column_of_which_most_cells_are_no_such(tmp_path: Path) -> None:
    cells = [f"{day}.03.2021" for day in DAYS]
    found = column(tmp_path, cells, schema=declared(dates=["a"]))
    assert "60 of its cells (100 %) are no dates in the order that is declared" in found.wrong
    assert column(tmp_path, cells, schema=declared(dates={"a": "dmy"})).wrong == ""


def test_a_file_with_everything_wrong_says_all_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{k},5;Zürich;{'yes' if k % 2 else 'no'}" for k in range(80)]
    rows[7], rows[30] = "1,5;x", "1;2;3;4"
    path.write_bytes("\n".join(["size;city;t", *rows]).encode("latin-1"))
    look = look_at(path, target="t")
    words = look.in_the_way()
    assert "not UTF-8 (line 2); it looks like latin-1" in words
    assert "2 rows have more or fewer cells than the header (row 8, 31)" in words
    assert "size: its numbers have decimal commas" in words
    assert "--encoding latin-1 --decimal ," in words
    assert "city: it has one value only" in words
    path.write_bytes("\n".join(["size;city;t", *rows[40:]]).encode("latin-1"))
    form = CsvForm("latin-1", decimal=",")
    assert kinds(look_at(path, form=form))["size"] == "number"
    with pytest.raises(DataError, match="is not UTF-8"):
        table(path, target="t", from_data=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has no rows"),
        (b"a,b\n", "has no rows"),
        (b"a,a\n1,2\n", "share their names"),
    ],
)
def test_files_that_cannot_be_looked_at(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=words):
        look_at(tmp_path / "t.csv")
    with pytest.raises(DataError, match="no file"):
        look_at(tmp_path / "none.csv")


def test_unknown_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["1", "2"], ["x", "y"])
    for options in ({"target": "c"}, {"sensitive": ["c"]}, {"drop": ["c"]}):
        with pytest.raises(TableError, match="no column called 'c'"):
            look_at(path, **options)  # type: ignore[arg-type]


def test_the_index_that_pandas_writes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame({"x": [k % 5 + 0.5 for k in range(40)], "y": list("ab" * 20)}).to_csv(path)
    look = look_at(path, target="y")
    assert look.columns[0].kind == "id"
    assert look.command.endswith("--drop ''")


def test_parquet_and_a_frame_are_seen_like_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = clinic(tmp_path / "clinic.csv", 400)
    frame = pd.read_csv(path, keep_default_na=False, dtype=str)
    frame.to_parquet(tmp_path / "clinic.parquet")
    seen = [look_at(one).columns for one in (path, tmp_path / "clinic.parquet", frame)]
    assert seen[0] == seen[1] == seen[2]


def test_a_schema_to_fill_in_has_the_kinds(tmp_path: Path) -> None:
    path = clinic(tmp_path / "clinic.csv")
    schema = described(path)
    assert (schema["admitted"].kind, schema["admitted"].order) == ("date", "dmy")
    assert (schema["diagnosis"].kind, schema["notes"].kind) == ("hash", "text")
    (tmp_path / "s.toml").write_text(schema.toml("clinic.csv"))
    assert declared(schema=tmp_path / "s.toml") == schema
    whole = described(path, from_data=True)
    (tmp_path / "whole.toml").write_text(whole.toml("clinic.csv"))
    assert 'range = ["2018-01-01", "2022-12-0' in whole.toml("clinic.csv")
    assert declared(schema=tmp_path / "whole.toml")["admitted"] == whole["admitted"]


def test_the_dutch_census(tmp_path: Path) -> None:
    """Codes in words of digits: numbers to a look, which cannot know; and a target of two."""
    file = data_folder() / "dutch" / "dutch_census_2001.arff"
    if not file.is_file():
        pytest.skip("needs the Dutch census in PLUMBLINE_DATA")
    lines = file.read_text().splitlines()
    start = [line.lower() for line in lines].index("@data")
    names = [line.split()[1] for line in lines[:start] if line.lower().startswith("@attribute")]
    path = tmp_path / "dutch.csv"
    path.write_text("\n".join([",".join(names), *lines[start + 1 :]]) + "\n")
    look = look_at(path, target="occupation", sensitive=["sex"])
    assert look.rows == 60_420
    assert look.classes == {"5_4_9": 31_657, "2_1": 28_763}
    assert look.in_the_way() == ""
    assert set(kinds(look).values()) <= {"number", "category"}


def test_a_marker_among_categories_is_not_counted_as_no_number(tmp_path: Path) -> None:
    found = column(tmp_path, ["?", "x", "y"] * 20)
    assert found.wrong == "some cells say ?, as if a value were missing"


def test_columns_of_codes_are_listed_together(tmp_path: Path) -> None:
    codes, answers = ["1110", "1132", "1210"] * 20, ["b", "c", "b"] * 20
    look = look_at(written(tmp_path / "t.csv", codes, codes, answers), target="c")
    assert look.command.endswith(" --target c --categorical a,b")
    assert look.in_the_way() == ""
