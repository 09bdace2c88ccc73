"""Which ledger a table's runs are charged to: that of its rows, wherever they lie."""

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from plumbline.data import DataError
from plumbline.experiments import known_tables
from plumbline.experiments.files import FileError
from plumbline.experiments.known_tables import RECORD
from plumbline.experiments.recipe import DataPart
from plumbline.experiments.table_ledgers import TableLedgers, ledgers_of
from plumbline.experiments.user_folders import config_folder, state_folder
from tests.data.test_table_sketch import COLUMNS, people, write


def of(path: Path, **options: object) -> TableLedgers:
    return ledgers_of(DataPart(name="table", options={"path": str(path), **options}))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "patients.csv", people(800, 0))


def test_a_table_has_one_ledger_in_the_state_folder(table: Path) -> None:
    first = of(table)
    (ledger,) = first.paths
    assert state_folder() in ledger.parents
    assert first.words == ()
    assert of(table) == first


def test_other_data_have_none() -> None:
    assert ledgers_of(DataPart(name="adult")) == TableLedgers()
    assert not state_folder().exists()


def test_what_is_kept_is_the_users_alone(table: Path) -> None:
    (ledger,) = of(table).paths
    record, key = ledger.with_name(RECORD), config_folder() / "row-key"
    for private in (record, key):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.parent.stat().st_mode) == 0o700
    assert record.read_text().startswith("PRIVATE: ")
    text = record.read_text()
    assert "Oslo" not in text
    assert key.read_text() not in text


def test_the_same_rows_in_another_file(table: Path, tmp_path: Path) -> None:
    first = of(table).paths
    moved = tmp_path / "elsewhere" / "copy.csv"
    moved.parent.mkdir()
    table.rename(moved)
    assert of(moved).paths == first
    rows = [row[::-1] for row in sorted(people(800, 0), key=str)]
    found = of(write(tmp_path / "sorted.csv", rows, COLUMNS[::-1], delimiter=";"))
    assert found.paths == first
    assert found.words == (
        "The rows of sorted.csv are those of patients.csv: its runs are charged to the same "
        "ledger.",
    )
    assert of(tmp_path / "sorted.csv") == found  # said again


def test_a_table_that_grows_is_the_same_and_that_is_said(table: Path) -> None:
    first = of(table).paths
    rows = people(800, 0)
    for month in range(1, 5):  # and forgets who is old
        rows = [*rows[300:], *people(500, month)]
        found = of(write(table, rows))
        assert found.paths == first, month
        (words,) = found.words
        assert "the patients.csv that was used before" in words
        assert "%" in words
    grown = of(write(table, [*rows, *people(400, 9)]))
    assert grown.paths == first
    assert grown.words[0].startswith("About ")


def test_a_part_of_a_table_and_more_columns_are_the_same(table: Path, tmp_path: Path) -> None:
    first, rows = of(table).paths, people(800, 0)
    part = of(write(tmp_path / "men.csv", rows[:200]))
    assert part.paths == first
    assert part.words[0].startswith("The rows of men.csv are a part of those of patients.csv")
    more = [(*row, "x") for row in rows]
    assert of(write(tmp_path / "more.csv", more, (*COLUMNS, "new"))).paths == first


def test_fewer_columns_are_the_same_while_the_whole_is_there(table: Path, tmp_path: Path) -> None:
    first = of(table).paths
    less = write(tmp_path / "less.csv", [row[1:] for row in people(800, 0)], COLUMNS[1:])
    kept = table.rename(tmp_path / "kept")
    assert of(less).paths != first  # nobody can tell
    shutil.rmtree(of(less).paths[0].parent)
    kept.rename(table)
    assert of(less).paths == first


def test_a_file_that_has_not_the_columns_is_not_looked_at_for_them(
    table: Path, tmp_path: Path
) -> None:
    first, lines = of(table).paths, table.read_text().splitlines()
    without = tmp_path / "without.csv"
    without.write_text("\n".join(line.partition(",")[2] for line in lines) + "\n")
    assert of(without).paths == first
    renamed = tmp_path / "renamed.csv"
    renamed.write_text("\n".join([f"{lines[0]}_2", *lines[1:]]) + "\n")
    assert of(renamed).paths == first


def test_another_table_of_the_same_name_and_place_is_another(table: Path) -> None:
    first = of(table).paths
    assert of(write(table, people(800, 1))).paths != first


def test_common_rows_are_no_match(tmp_path: Path) -> None:
    one, other = ([(k * 7 % 3, k * seed % 4) for k in range(2000)] for seed in (5, 7))
    columns = ("smoker", "group")
    first = of(write(tmp_path / "one.csv", one, columns))
    assert of(write(tmp_path / "other.csv", other, columns)).paths != first.paths
    # But the same file with a row more cannot be told from it, and is taken for the same.
    grown = of(write(tmp_path / "one.csv", [*one, (0, 0)], columns))
    assert grown.paths == first.paths
    assert "too few, or too common" in grown.words[0]
    shuffled = of(write(tmp_path / "shuffled.csv", one[::-1], columns))
    assert shuffled.paths == first.paths  # the very same rows


@pytest.mark.parametrize("count", [5, 30, 49])
def test_small_tables(tmp_path: Path, count: int) -> None:
    first = of(write(tmp_path / "few.csv", people(count, 0)))
    assert of(write(tmp_path / "copy.csv", people(count, 0)[::-1])).paths == first.paths
    assert of(write(tmp_path / "others.csv", people(count, 1))).paths != first.paths
    grown = of(write(tmp_path / "few.csv", [*people(count, 0), *people(3, 2)]))
    assert grown.paths == first.paths


def test_a_table_of_the_rows_of_two_is_charged_to_both(table: Path, tmp_path: Path) -> None:
    first = of(table).paths
    second = of(write(tmp_path / "other.csv", people(600, 1))).paths
    both = of(write(tmp_path / "pooled.csv", [*people(800, 0), *people(600, 1)]))
    assert {*both.paths} == {*first, *second}
    assert len(both.words) == 2
    assert of(table).paths == first  # which stay apart
    assert of(write(table, [*people(800, 0), *people(10, 5)])).paths == first


def test_a_data_frame_is_a_table(table: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from plumbline.experiments.objects import OBJECTS

    first = of(table).paths
    OBJECTS["object:frame"] = pandas.read_csv(table)
    try:
        assert ledgers_of(DataPart(name="object:frame")).paths == first
    finally:
        del OBJECTS["object:frame"]


def test_processes_that_meet_a_table_at_once_agree(table: Path) -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            of(table)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(list(state_folder().glob(f"tables/*/{RECORD}"))) == 1


# What goes wrong.


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_folder_that_cannot_be_written(table: Path) -> None:
    state_folder().mkdir(mode=0o500)
    with pytest.raises(FileError, match="name a ledger with --ledger"):
        of(table)


def test_a_state_folder_that_is_a_file(table: Path) -> None:
    state_folder().parent.mkdir(exist_ok=True)
    state_folder().write_text("")
    with pytest.raises(FileError, match=r"PLUMBLINE_STATE.*--ledger"):
        of(table)


def test_a_key_that_others_can_read_or_that_is_damaged(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLUMBLINE_CONFIG", str(tmp_path / "config"))
    of(table)
    key = tmp_path / "config" / "row-key"
    key.chmod(0o644)
    with pytest.raises(FileError, match="chmod 600"):
        of(table)
    key.chmod(0o600)
    key.write_text("no key")
    with pytest.raises(FileError, match="is damaged"):
        of(table)


def test_another_key_recognises_nothing_and_says_so(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = of(table).paths
    monkeypatch.setenv("PLUMBLINE_CONFIG", str(tmp_path / "config"))
    found = of(table)
    assert found.paths != first
    assert "1 tables that were used before are known by another key" in found.words[0]


def test_a_damaged_record_is_named(table: Path) -> None:
    (ledger,) = of(table).paths
    ledger.with_name(RECORD).write_text("nonsense")
    with pytest.raises(FileError, match=r"table\.PRIVATE is damaged"):
        of(table)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no file"):
        of(tmp_path / "none.csv")


def test_what_was_seen_is_not_read_again(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = of(table)

    def unread(*_: object) -> Sequence[object]:
        raise AssertionError("the rows were read again")

    monkeypatch.setattr(known_tables, "sketches", unread)
    assert of(table) == first
