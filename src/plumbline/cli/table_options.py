"""The options that describe data, a table of one's own above all, and what they say."""

from __future__ import annotations

import csv
import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from plumbline.cli.app import WrongUse

if TYPE_CHECKING:
    from plumbline.data.csv_files import CsvForm


def option_in(panel: str) -> Callable[..., inspect.Parameter]:
    """Makes options that the help shows together."""

    def option(
        name: str, kind: Any, text: str, default: str | bool = True, *declared: str, **more: Any
    ) -> inspect.Parameter:
        shown = {"help": text, "show_default": default, "rich_help_panel": panel, **more}
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(None, *declared, **shown),
            annotation=kind,
        )

    return option


_data = option_in("Data")
_table = option_in("Data: a table")
_column = functools.partial(_table, kind=list[str], metavar="COLUMN,...")
ENCODING = "Of a csv file: latin-1, cp1252, utf-16."
SEPARATOR, BY_HEADER = "Between the cells of a csv file; `tab` for tabs.", "as the header shows"
DECIMAL = "Before the decimals of a csv file's numbers: a point or a comma."
FORM = (
    _table("encoding", str, ENCODING, "utf-8"),
    _table("separator", str, SEPARATOR, BY_HEADER),
    _table("decimal", str, DECIMAL, "."),
)
TABLE = (
    _data("data", str, "A csv or parquet file, a data set, or package.module:attribute."),
    _table("target", list[str], "The column to predict: a class, or a number.", metavar="COLUMN"),
    _table(
        "task",
        Literal["classification", "regression"],
        "Whether the target is a class or a number.",
        "regression if the target has a --range",
    ),
    _column("sensitive", text="Columns whose groups are reported."),
    _column("drop", text="Columns to leave out."),
    _table(
        "categories",
        list[str],
        "The values of a column, of the target too; of columns that are not declared, they are "
        "found privately.",
        metavar="COLUMN=A,B",
    ),
    _table(
        "range_",
        list[str],
        "The lowest and highest value of a column of numbers or dates; else found privately.",
        True,
        "--range",
        metavar="COLUMN=LOW:HIGH",
    ),
    _column("categorical", text="Columns of numbers that are categories. Columns of text are."),
    _table(
        "date",
        list[str],
        "A column of dates: 2021-04-03, or with dmy 3.4.2021, with mdy 4/3/2021.",
        metavar="COLUMN[=ORDER]",
    ),
    _table(
        "hash_",
        list[str],
        "A column of codes with many values: a public hash gives each one of so many features.",
        True,
        "--hash",
        metavar="COLUMN=64",
    ),
    _table(
        "prefix",
        list[str],
        "Look only at the first characters of a column's values.",
        metavar="COLUMN=3",
    ),
    _table(
        "text",
        list[str],
        "A column of free text: a public hash gives its words so many features.",
        metavar="COLUMN=1024",
    ),
    _table("records", int, "How many rows the table has, if that is public; else found privately."),
    _table("schema", Path, "A file that declares these; `plumbline data schema` writes one."),
    _table(
        "from_data",
        bool,
        "Take what is not declared from the rows as they are: epsilon does not cover it.",
        True,
        "--from-data",
    ),
    _table(
        "missing",
        Literal["fill", "drop", "error"],
        "Where a value is missing: fill it and flag it, leave the row out, or stop.",
        "fill",
    ),
    _table("missing_value", list[str], "What a missing cell says, beside nothing.", metavar="TEXT"),
    _table(
        "fill",
        list[str],
        "What fills a column; else its median or most frequent value, found privately.",
        metavar="COLUMN=VALUE",
    ),
    *FORM,
    _table("test", Path, "A second file to evaluate on; else a fifth is held out."),
)


def described_table(found: dict[str, Any]) -> dict[str, Any]:
    """What the options say about a table, as ``Description`` has it."""
    if "data" not in found:
        for one in TABLE:
            if one.name in found:
                option = one.name.strip("_").replace("_", "-")
                raise WrongUse(
                    f"--{option} describes a table, which --data names; a recipe has its own."
                )
        return found
    if Path(found["data"]).suffix.lower() in (".csv", ".parquet") and "target" not in found:
        raise WrongUse("--target is missing: which column of the table is to be predicted?")
    said = {name: value for name, value in found.items() if name not in _READ}
    for name, (new, read) in _READ.items():
        if name in found:
            said[new] = read(found[name])
    return said


def names_in(given: Iterable[str]) -> list[str]:
    """Names of columns, given one by one or with commas; quoted where one has a comma itself."""
    return [name.strip() for text in given for name in next(csv.reader([text]), [""]) or [""]]


def one_target(given: list[str]) -> str:
    """The column to predict, of which there is one."""
    if len(given) > 1:
        raise WrongUse(
            f"--target is given {len(given)} times; a model predicts one column. Make a run for "
            "each, and leave the others out (--drop)."
        )
    return given[0]


def each(option: str, read: Callable[[str], tuple[str, Any]]) -> Callable[[list[str]], Any]:
    """Reads an option that is given once for each column."""

    def every(given: list[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in map(read, given):
            if name in values:
                raise WrongUse(f"{option} is given twice for '{name}'; give each column once.")
            values[name] = value
        return values

    return every


def _categories(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise WrongUse(f"--categories {text}: give a column and its values, as in sex=F,M.")
    return name, [value.strip() for value in next(csv.reader([values], skipinitialspace=True))]


def _range(text: str) -> tuple[str, list[float | str]]:
    name, equals, ends = text.rpartition("=")
    low, colon, high = ends.partition(":")
    if not (equals and colon):
        raise WrongUse(
            f"--range {text}: give a column with its lowest and highest value, as in age=0:120."
        )
    return name, [_value(low), _value(high)]


def _date(text: str) -> tuple[str, str]:
    name, equals, order = text.rpartition("=")
    return (name, order) if equals else (text, "ymd")


def _number(option: str, example: int) -> Callable[[str], tuple[str, int]]:
    def read(text: str) -> tuple[str, int]:
        name, _, count = text.rpartition("=")
        if not (name and count.isdecimal()):
            raise WrongUse(
                f"{option} {text}: give a column and a number, as in {option} code={example}."
            )
        return name, int(count)

    return read


def _fill(text: str) -> tuple[str, float | str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise WrongUse(f"--fill {text}: give a column and what fills it, as in age=40.")
    return name, _value(value)


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def csv_form(encoding: str, separator: str | None, decimal: str) -> CsvForm:
    """How the cells stand in a csv file, as the options say."""
    from plumbline.data.csv_files import CsvForm

    return CsvForm(encoding, None if separator is None else _separator(separator), decimal)


def _separator(given: str) -> str:
    """A separator, which a shell cannot always be given as it is."""
    return "\t" if given in ("tab", "\\t") else given


_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "target": ("target", one_target),
    "sensitive": ("sensitive", names_in),
    "drop": ("drop", names_in),
    "categorical": ("categorical", names_in),
    "categories": ("categories", each("--categories", _categories)),
    "range_": ("ranges", each("--range", _range)),
    "date": ("dates", each("--date", _date)),
    "hash_": ("hashes", each("--hash", _number("--hash", 64))),
    "prefix": ("prefixes", each("--prefix", _number("--prefix", 3))),
    "text": ("texts", each("--text", _number("--text", 1024))),
    "fill": ("fills", each("--fill", _fill)),
    "missing_value": ("missing_values", lambda given: ["", *given]),
    "separator": ("separator", _separator),
}
"""The options that stand otherwise in a ``Description``: by which name, and read how."""
