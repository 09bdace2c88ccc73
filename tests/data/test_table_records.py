"""Rows as records: what becomes of values that were not found."""

from pathlib import Path

import pytest

from plumbline.data.files import TableError
from plumbline.data.table_records import with_others
from plumbline.data.tables import table


def test_a_name_for_all_others_that_no_value_has() -> None:
    assert with_others(("no",)) == ("no", "(other)")
    assert with_others(("(other)", "no")) == ("(other)", "no", "((other))")
    assert with_others(()) == ("(other)",)


def rows(folder: Path, values: list[str]) -> Path:
    path = folder / "rows.csv"
    path.write_text("a,y\n" + "".join(f"{k},{value}\n" for k, value in enumerate(values)))
    return path


@pytest.mark.parametrize("common", ["no", "(other)"])
def test_one_class_that_was_found_and_all_others(tmp_path: Path, common: str) -> None:
    """Also where the table itself has a class of that name, which was found or was not."""
    values = [common, "yes", common, "maybe", "other", common] * 10
    splits = table(
        rows(tmp_path, values),
        target="y",
        ranges={"a": (0, 60)},
        categories={"y": [common]},
        found=["y"],
    )
    assert splits.classes == with_others((common,))
    assert len(set(splits.classes)) == 2
    assert splits.use is not None
    assert splits.use.left_out == 0
    both = [*splits.train.y.tolist(), *splits.test.y.tolist()]
    assert sorted(both) == sorted(int(value != common) for value in values)


def test_of_two_classes_that_were_found_other_rows_take_no_part(tmp_path: Path) -> None:
    splits = table(
        rows(tmp_path, ["no", "yes", "no", "maybe"] * 10),
        target="y",
        ranges={"a": (0, 60)},
        categories={"y": ["no", "yes"]},
        found=["y"],
    )
    assert splits.classes == ("no", "yes")
    assert splits.use is not None
    assert (splits.use.left_out, splits.use.other) == (10, 10)


def test_a_class_that_is_declared_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="one value only"):
        table(
            rows(tmp_path, ["no", "yes"] * 10),
            target="y",
            ranges={"a": (0, 60)},
            categories={"y": ["no"]},
        )


@pytest.mark.parametrize("column", ["y", "a"])
def test_an_unknown_value_is_refused_without_naming_those_of_other_rows(
    tmp_path: Path, column: str
) -> None:
    """Values that are declared are named; those that were taken from the rows are not."""
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("a,y\n" + "Oslo,low\nSECRET,high\nRome,SECRET\n" * 10)
    test.write_text("a,y\nCairo,low\n" if column == "a" else "a,y\nOslo,new\n")
    options = {"target": "y", "sensitive": "a", "test": test}
    with pytest.raises(TableError, match=f"'{column}' has a value in row 1 of test.csv") as taken:
        table(train, **options, from_data=True)
    for word in ("SECRET", "Cairo", "new", "Rome"):
        assert word not in str(taken.value)
    values = {"y": ["low", "high", "SECRET"], "a": ["Oslo", "Rome", "SECRET"]}
    with pytest.raises(TableError, match=r"none of its 3: .*SECRET"):
        table(train, **options, categories=values, records=30)
