"""The schema of a table: kinds, ranges and categories of its columns, and its number of rows.

It is stated by whoever knows the table (``--range``, ``--categories``, ``--date``, ``--hash``, a
file that ``plumbline data schema`` writes), found privately, or taken from the rows. What it does
not say is not known: nothing here looks at a row.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, Unpack

import tomli_w

from plumbline.checks import check_count, is_number
from plumbline.data.encoding import check_one_of
from plumbline.data.files import TableError
from plumbline.data.table_dates import ORDERS, Order, days_of, iso
from plumbline.data.table_options import StatedOptions
from plumbline.registry import unknown

NUMBER: Final = "number"
CATEGORY: Final = "category"
DATE: Final = "date"
HASH: Final = "hash"
TEXT: Final = "text"
Kind = Literal["number", "category", "date", "hash", "text"]
MEASURED: Final = (NUMBER, DATE)
"""The kinds that have a range."""
MOST_CLASSES, MOST_GROUPS, MOST_CATEGORIES = 100, 30, 200
"""How many values the target, a sensitive column and any other categorical one may have."""
Range = tuple[float, float]
_FIELDS = {
    NUMBER: ("kind", "range", "fill"),
    CATEGORY: ("kind", "categories", "fill", "prefix"),
    DATE: ("kind", "order", "range", "fill"),
    HASH: ("kind", "bins", "prefix"),
    TEXT: ("kind", "bins"),
}
_SAID = {
    CATEGORY: "to have categories",
    NUMBER: "to be numeric (--range)",
    DATE: "to hold dates (--date)",
    HASH: "to be hashed (--hash)",
    TEXT: "to hold text (--text)",
}


@dataclass(frozen=True)
class Column:
    """What is known of a column.

    Attributes:
        kind: Whether it holds numbers, categories, dates, codes that are hashed, or text; None if
            that is not known.
        range: The lowest and highest number; of dates, in days since 1970-01-01.
        fill: What a missing cell is taken to be: a number (of dates, a day), by default the middle
            of the range; or a category, by default none of them.
        categories: The categories.
        order: Of dates, in which day, month and year stand.
        bins: How many features codes, or the words of a text, are hashed into.
        prefix: How many characters of a category or code are looked at; None for all.
    """

    kind: Kind | None = None
    range: Range | None = None
    fill: float | str | None = None
    categories: tuple[str, ...] | None = None
    order: Order = "ymd"
    bins: int | None = None
    prefix: int | None = None

    @property
    def complete(self) -> bool:
        """Whether cells can be encoded without looking at other rows."""
        if self.kind in MEASURED:
            return self.range is not None
        return (self.categories if self.bins is None else self.bins) is not None

    def shown(self, value: float | str) -> float | str:
        """A number of this column as people write it: of dates, a date."""
        return iso(value) if self.kind == DATE and not isinstance(value, str) else value


@dataclass(frozen=True)
class Schema:
    """What is known of a table.

    Attributes:
        columns: By name; a column that is not here is not known at all.
        records: The number of rows, if it is public.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    records: int | None = None

    def __getitem__(self, name: str) -> Column:
        return self.columns.get(name, Column())

    def of_kind(self, kind: Kind, names: Iterable[str] | None = None) -> list[str]:
        """The columns of a kind, among ``names``."""
        listed = self.columns if names is None else names
        return [name for name in listed if self[name].kind == kind]

    def with_columns(self, columns: Mapping[str, Column]) -> Schema:
        """The schema with more, or other, columns."""
        return replace(self, columns={**self.columns, **columns})

    def options(self) -> dict[str, Any]:
        """The same as options of ``table``, as plain values; what is not known is left out."""
        columns = self.columns.items()
        options: dict[str, Any] = {
            "categories": {n: list(c.categories) for n, c in columns if c.categories is not None},
            "ranges": {n: list(map(c.shown, c.range)) for n, c in columns if c.range is not None},
            "fills": {n: c.shown(c.fill) for n, c in columns if c.fill is not None},
            "categorical": [n for n, c in columns if c.kind == CATEGORY and not c.complete],
            "numeric": [n for n, c in columns if c.kind == NUMBER and not c.complete],
            "dates": {n: c.order for n, c in columns if c.kind == DATE},
            "hashes": {n: c.bins for n, c in columns if c.kind == HASH},
            "texts": {n: c.bins for n, c in columns if c.kind == TEXT},
            "prefixes": {n: c.prefix for n, c in columns if c.prefix is not None},
            "records": self.records,
        }
        return {name: value for name, value in options.items() if value}

    def toml(self, title: str) -> str:
        """The text of a file that ``read_schema`` reads, with a place for what is not known."""
        lines = [
            f"# The schema of {title}. What stands here is taken to be public: check each line.",
            "# What you leave out is found privately, which costs a twentieth of epsilon.",
            "",
        ]
        known = self.records is not None
        lines.append(f"records = {self.records}" if known else "# records = 10000")
        for name, column in self.columns.items():
            # A table's header, with the name quoted where it has to be.
            lines += ["", tomli_w.dumps({"columns": {name: {}}}).strip()]
            if column.kind is not None:
                lines.append(f'kind = "{column.kind}"')
            fields: dict[str, Any] = {"order": column.order} if column.kind == DATE else {}
            fields |= {"range": column.range and list(map(column.shown, column.range))}
            fields |= {"fill": None if column.fill is None else column.shown(column.fill)}
            fields |= {"bins": column.bins, "prefix": column.prefix}
            fields |= {"categories": column.categories and list(column.categories)}
            lines += [
                f"{field} = {_toml(value)}" for field, value in fields.items() if value is not None
            ]
            if not column.complete and column.kind is not None:
                lines.append(_EXAMPLES[column.kind])
        return "\n".join(lines) + "\n"


_EXAMPLES = {
    NUMBER: "# range = [0, 100]",
    DATE: '# range = ["2000-01-01", "2029-12-31"]',
    CATEGORY: '# categories = ["a", "b"]',
}


def _toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value) if isinstance(value, float) else tomli_w.dumps({"_": value})[4:].strip()


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in a TOML file.

    Raises:
        TableError: If it cannot be used, naming the file and the field.
    """
    file = Path(path)
    try:
        stored = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(f"Cannot read the schema {file}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise TableError(f"The schema {file} is not valid TOML: {error}.") from error
    for name in stored:
        _require(file, name, ("records", "columns"))
    columns = stored.get("columns", {})
    if not isinstance(columns, dict) or not all(isinstance(c, dict) for c in columns.values()):
        raise TableError(f"The schema {file} has columns that are not tables, [columns.age] say.")
    try:
        return Schema(
            {name: _column(file, name, fields) for name, fields in columns.items()},
            _records(stored.get("records")),
        )
    except TableError as error:
        raise TableError(f"The schema {file} cannot be used: {error}") from error


def _column(file: Path, name: str, fields: Mapping[str, Any]) -> Column:
    kind: Any = fields.get("kind")
    if kind is None:
        kind = CATEGORY if "categories" in fields else NUMBER if "range" in fields else None
    if kind not in (*_FIELDS, None):
        kinds = ", ".join(map(repr, _FIELDS))
        raise TableError(f"kind of '{name}' is {kind!r}; it must be one of {kinds}.")
    for one in fields:
        _require(file, one, _FIELDS.get(kind or "", ("kind",)), of=f" of the {kind} '{name}'")
    given = {field: value for field, value in fields.items() if field != "kind"}
    return column_of(name, Column(kind), **given)


def _require(file: Path, name: str, names: Sequence[str], of: str = "") -> None:
    if name not in names:
        words = unknown(f"field{of} called", name, names)
        raise TableError(f"{file}: {words}" if not of else words)


def declared(**stated: Unpack[StatedOptions]) -> Schema:
    """What was stated about a table, from a schema and from options, which come first.

    Raises:
        TableError: If a column is said to be of two kinds, or a value makes no sense.
    """
    schema = stated.get("schema") or Schema()
    start = schema if isinstance(schema, Schema) else read_schema(schema)
    categorical, numeric = stated.get("categorical", ()), stated.get("numeric", ())
    dates, records = stated.get("dates", ()), stated.get("records")
    hashes, texts = stated.get("hashes") or {}, stated.get("texts") or {}
    for what, names in (("categorical", categorical), ("numeric", numeric), ("dates", dates)):
        if isinstance(names, str):
            raise TypeError(f"{what} is the text {names!r}; give a list of names.")
    orders = dates if isinstance(dates, Mapping) else dict.fromkeys(dates, "ymd")
    fields: dict[str, Mapping[str, Any]] = {
        "categories": stated.get("categories") or {},
        "range": stated.get("ranges") or {},
        "fill": stated.get("fills") or {},
        "order": orders,
        "bins": {**hashes, **texts},
        "prefix": stated.get("prefixes") or {},
    }
    said: list[tuple[Kind, Iterable[str]]] = [(DATE, orders), (NUMBER, numeric)]
    said += [(HASH, hashes), (TEXT, texts)]
    said += [(CATEGORY, (*fields["categories"], *categorical))]
    kinds: dict[str, Kind] = {n: c.kind for n, c in start.columns.items() if c.kind is not None}
    of_schema = dict(kinds)
    for kind, listed in said:
        for name in listed:
            _say(name, kind, kinds, of_schema)
    # What these say follows from the kind where that is known.
    for name in fields["range"]:
        if kinds.get(name) != DATE:
            _say(name, NUMBER, kinds, of_schema)
    for name in fields["prefix"]:
        if kinds.get(name) != HASH:
            _say(name, CATEGORY, kinds, of_schema)
    for name, value in fields["fill"].items():
        kinds.setdefault(name, NUMBER if is_number(value) else CATEGORY)
    columns = dict(start.columns)
    for name, kind in kinds.items():
        given = {field: values[name] for field, values in fields.items() if name in values}
        for one in given:
            _allow(name, kind, one)
        columns[name] = column_of(name, replace(start[name], kind=kind), **given)
    return Schema(columns, start.records if records is None else _records(records))


def _say(name: str, kind: Kind, kinds: dict[str, Kind], of_schema: Mapping[str, Kind]) -> None:
    """Notes what a column is said to be; refuses a second kind."""
    if (was := kinds.get(name, kind)) != kind and name in of_schema:
        raise TableError(
            f"The column '{name}' is a {was} in the schema, and the options say that it is a "
            f"{kind}; change one of them."
        )
    if was != kind:
        first, second = (_SAID[one] for one in _SAID if one in (was, kind))
        raise TableError(
            f"The column '{name}' is said {first} and {second}; a column is one or the other."
        )
    kinds[name] = kind


def _allow(name: str, kind: Kind, field: str) -> None:
    if field not in _FIELDS[kind]:
        raise TableError(
            f"The column '{name}' is said {_SAID[kind]}, which has no {field}; give another kind, "
            f"or leave the {field} out."
        )


def column_of(name: str, start: Column, **given: Any) -> Column:
    """A column with more fields, once their values were found to make sense."""
    kind, fields = start.kind, {field: value for field, value in given.items() if value is not None}
    if (ends := fields.get("range")) is not None:
        what = "two dates, such as 2000-01-01:2029-12-31" if kind == DATE else "two numbers"
        if not (isinstance(ends, list | tuple) and len(ends) == 2):
            raise TableError(f"The range of '{name}' is {ends!r}; give {what}, [low, high].")
        low, high = (_measured(kind, end) for end in ends)
        if low is None or high is None:
            dated = "" if kind == DATE else "; of a column of dates (--date), two dates"
            raise TableError(f"The range of '{name}' is {ends!r}; give {what}, [low, high]{dated}.")
        if not low < high:
            shown = ", ".join(f"{e:g}" if is_number(e) else str(e) for e in ends)
            raise TableError(f"The range of '{name}' is ({shown}); low must be below high.")
        fields["range"] = low, high
    if (categories := fields.get("categories")) is not None:
        if isinstance(categories, str) or not isinstance(categories, Iterable):
            raise TableError(f"The categories of '{name}' are {categories!r}; give a list of them.")
        fields["categories"] = categories = tuple(str(value).strip() for value in categories)
        if not categories or len(set(categories)) < len(categories) or "" in categories:
            raise TableError(
                f"The categories of '{name}' are {list(categories)}; give at least one, each once, "
                "and none that is empty."
            )
    if (fill := fields.get("fill")) is not None:
        fields["fill"] = str(fill) if kind == CATEGORY else _measured(kind, fill)
        if fields["fill"] is None:
            what = "a date, such as 2020-01-01" if kind == DATE else "a number"
            raise TableError(f"The fill of '{name}' is {fill!r}; give {what}.")
    for one in ("bins", "prefix"):
        if one in fields:
            check_count(f"{one} of '{name}'", fields[one])
    if "order" in fields:
        check_one_of(f"The order of the dates of '{name}'", fields["order"], ORDERS)
    found = replace(start, **fields)
    if kind in (HASH, TEXT) and found.bins is None:
        raise TableError(f"'{name}' has no number of bins; give one, such as 64.")
    if isinstance(found.fill, str) and found.fill not in (found.categories or (found.fill,)):
        raise TableError(
            f"The fill of '{name}' is {found.fill!r}, which is none of its categories: "
            f"{', '.join(found.categories or ())}."
        )
    return found


def _measured(kind: Kind | None, value: Any) -> float | None:
    """An end of a range, or a fill, as a number; None if it is none."""
    if kind == DATE:
        day = float(days_of([value.isoformat() if isinstance(value, date) else str(value)])[0])
        return None if math.isnan(day) else day
    return float(value) if is_number(value) else None


def _records(given: Any) -> int | None:
    if given is not None and not (type(given) is int and given >= 1):
        raise TableError(f"records is {given!r}; it must be a whole number of at least 1.")
    return given
