"""The options that describe a table: the same for ``table``, ``plumbline.train`` and a recipe.

They stand here once, with their types and their meaning. What is left out is not stated, or has
the default that is named here. The command line reads the same from texts
(``cli.table_options``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from plumbline.data.table_files import TableSource

if TYPE_CHECKING:
    from plumbline.data.table_schema import Schema

Missing = Literal["fill", "drop", "error"]
Task = Literal["classification", "regression"]


class StatedOptions(TypedDict, total=False):
    """What is stated about a table, and so taken to be public.

    Attributes:
        schema: A file, or a ``Schema``, that says the same as the others, which come first.
        categories: The values of categorical columns, of the target and of the sensitive ones, as
            in ``{"city": ["Oslo", "Rome"]}``.
        categorical: Columns that are categorical, whose categories are not declared.
        ranges: The lowest and highest value of numeric columns; of dates, the first and last day,
            as in ``{"admitted": ("2015-01-01", "2024-12-31")}``.
        fills: What a missing cell is taken to be; by default the middle of a range, and none of the
            categories.
        numeric: Columns that are numeric, whose range is not declared.
        dates: Columns of dates, with the order of year, month and day: ``{"admitted": "dmy"}``; a
            list of names for "ymd".
        hashes: Columns of codes with many values, with the number of features that a public hash
            gives them.
        texts: Columns of free text, with the number of features that their words are hashed into.
        prefixes: How many characters of a column's categories or codes are looked at.
        records: The number of rows in the table, if it is public knowledge.
    """

    schema: Schema | str | os.PathLike[str] | None
    categories: Mapping[str, Sequence[object]] | None
    categorical: Sequence[str]
    ranges: Mapping[str, Sequence[float | str]] | None
    fills: Mapping[str, float | str] | None
    numeric: Sequence[str]
    dates: Mapping[str, str] | Sequence[str]
    hashes: Mapping[str, int] | None
    texts: Mapping[str, int] | None
    prefixes: Mapping[str, int] | None
    records: int | None


class TableDescription(StatedOptions, total=False):
    """What describes a table, beside its target; what is not stated may be found privately.

    Attributes:
        task: "classification" or "regression"; by default the target is a number if its range is
            declared, and a class otherwise.
        sensitive: The column of the group; of several columns, the groups are the intersections.
            They are categorical features too, unless dropped.
        from_data: Takes what is not declared from the training rows as they are. A column of which
            more than half of the cells are numbers is then numeric.
        drop: Columns to leave out.
        missing: What to do where a cell is missing, or no number in a numeric column: "fill" it
            (the default), with a feature of each column that says where; "drop" leaves its row out;
            "error". Rows that lack the target or the group are always left out, or an error.
        missing_values: What a missing cell says; by default it is empty.
        encoding: Of the characters of a csv file; by default "utf-8".
        separator: What stands between its cells; by default what the header shows.
        decimal: What stands before the decimals of its numbers: "." (the default) or ",".
        test: A second file or DataFrame with the test rows; without it they are split off.
    """

    task: Task | None
    sensitive: str | Sequence[str]
    from_data: bool
    drop: Sequence[str]
    missing: Missing
    missing_values: Sequence[str]
    encoding: str
    separator: str | None
    decimal: str
    test: TableSource | None


class TableOptions(TableDescription, total=False):
    """All that ``table`` can be told: also what was found privately, and which rows to split off.

    Attributes:
        found: Columns whose values here were found privately. Rows of a class that was not found
            are left out, or are one class together if only one was found; and groups that were not
            found are one group together.
        noisy_records: Whether ``records`` was found privately.
        test_fraction: The share of the rows to split off, on average: each has a coin of its own.
        seed: Decides which; 0 by default.
    """

    found: Sequence[str]
    noisy_records: bool
    test_fraction: float
    seed: int


STATED = tuple(StatedOptions.__annotations__)
"""The options that state something about a table, by name."""
