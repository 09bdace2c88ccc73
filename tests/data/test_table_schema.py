"""What is declared about columns: kinds, one for each, and values that make sense."""

from pathlib import Path
from typing import Any

import pytest

from plumbline.data.table_schema import Column, Schema, declared

EVERYTHING: dict[str, Any] = {
    "categories": {"sex": ["f", "m"], "icd": ["A1", "B2"]},
    "categorical": ["ward"],
    "ranges": {"age": [0, 120], "seen": ["2020-01-01", "2020-12-31"]},
    "fills": {"age": 40, "seen": "2020-06-01", "sex": "f"},
    "numeric": ["stay"],
    "dates": {"seen": "dmy", "born": "ymd"},
    "hashes": {"code": 64},
    "texts": {"notes": 128},
    "prefixes": {"icd": 2, "code": 3},
    "records": 8000,
}


def test_everything_goes_through_options_and_a_file(tmp_path: Path) -> None:
    schema = declared(**EVERYTHING)
    assert schema["seen"] == Column("date", (18262.0, 18627.0), 18414.0, order="dmy")
    assert schema["code"] == Column("hash", bins=64, prefix=3)
    assert declared(**schema.options()) == schema
    (tmp_path / "s.toml").write_text(schema.toml("my.csv"))
    assert declared(schema=tmp_path / "s.toml") == schema
    assert [name for name in schema.columns if not schema[name].complete] == [
        "born",
        "stay",
        "ward",
    ]


def test_a_file_may_have_dates_as_toml_has_them(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        '[columns.seen]\nkind = "date"\nrange = [2020-01-01, 2020-12-31]\n'
    )
    assert declared(schema=tmp_path / "s.toml")["seen"].range == (18262.0, 18627.0)


def test_options_add_to_a_file() -> None:
    start = Schema({"seen": Column("date", order="mdy"), "code": Column("hash", bins=64)})
    both = declared(
        schema=start, ranges={"seen": ("2020-01-01", "2021-01-01")}, prefixes={"code": 1}
    )
    assert (both["seen"].order, both["seen"].range) == ("mdy", (18262.0, 18628.0))
    assert both["code"] == Column("hash", bins=64, prefix=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dates": ["a"], "numeric": ["a"]}, r"to be numeric .* and to hold dates .*one or the"),
        ({"dates": ["a"], "categorical": ["a"]}, "to have categories and to hold dates"),
        ({"hashes": {"a": 8}, "texts": {"a": 8}}, "to be hashed .* and to hold text"),
        ({"hashes": {"a": 8}, "categories": {"a": ["x"]}}, "to have categories and to be hashed"),
        ({"ranges": {"a": (0, 1)}, "texts": {"a": 8}}, "to be numeric .* and to hold text"),
        ({"dates": ["a"], "prefixes": {"a": 2}}, "to have categories and to hold dates"),
        ({"hashes": {"a": 8}, "fills": {"a": 2}}, "which has no fill; give another kind"),
        ({"hashes": {"a": 0}}, "bins of 'a' is 0; it must be a whole number"),
        ({"texts": {"a": 2.5}}, "bins of 'a' is 2.5"),
        ({"prefixes": {"a": -1}}, "prefix of 'a' is -1"),
        ({"dates": {"a": "dym"}}, "order of the dates of 'a' is 'dym'; it must be one of 'ymd'"),
        ({"dates": ["a"], "ranges": {"a": (0, 9)}}, "two dates, such as 2000-01-01:2029-12-31"),
        ({"ranges": {"a": ("2020-01-01", "2021-01-01")}}, r"of a column of dates \(--date\)"),
        ({"dates": ["a"], "ranges": {"a": ("2021-01-01", "2020-01-01")}}, "low must be below"),
        ({"dates": ["a"], "fills": {"a": "soon"}}, "fill of 'a' is 'soon'; give a date"),
        ({"numeric": ["a"], "fills": {"a": "many"}}, "fill of 'a' is 'many'; give a number"),
        ({"categories": {"a": ["x"]}, "fills": {"a": "y"}}, "none of its categories: x"),
        ({"schema": Schema({"a": Column("date")}), "numeric": ["a"]}, "is a date in the schema"),
    ],
)
def test_what_makes_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        declared(**options)
