"""The schema of a table: kinds, ranges and categories of its columns, and its number of rows.

It is stated by whoever knows the table (``--range``, ``--categories``, a file that ``plumbline data
schema`` writes), found privately, or taken from the rows. What it does not say is not known:
nothing here looks at a row.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import tomli_w

from plumbline.data.files import TableError
from plumbline.registry import unknown

NUMBER: Final = "number"
CATEGORY: Final = "category"
Kind = Literal["number", "category"]
Range = tuple[float, float]
STATED = ("schema", "categories", "categorical", "ranges", "fills", "numeric", "records")
"""The options of ``table`` that state something about it: the arguments of ``declared``."""
_FIELDS = {NUMBER: ("kind", "range", "fill"), CATEGORY: ("kind", "categories")}


@dataclass(frozen=True)
class Column:
    """What is known of a column.

    Attributes:
        kind: Whether it holds numbers or categories; None if that is not known.
        range: The lowest and highest number.
        fill: What a missing number is taken to be; by default the middle of the range.
        categories: The categories.
    """

    kind: Kind | None = None
    range: Range | None = None
    fill: float | None = None
    categories: tuple[str, ...] | None = None

    @property
    def complete(self) -> bool:
        """Whether cells can be encoded without looking at other rows."""
        return (self.range if self.kind == NUMBER else self.categories) is not None


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
            "ranges": {n: list(c.range) for n, c in columns if c.range is not None},
            "fills": {n: c.fill for n, c in columns if c.fill is not None},
            "categorical": [n for n, c in columns if c.kind == CATEGORY and not c.complete],
            "numeric": [n for n, c in columns if c.kind == NUMBER and not c.complete],
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
            if column.range is not None:
                lines.append(f"range = [{column.range[0]!r}, {column.range[1]!r}]")
            elif column.kind == NUMBER:
                lines.append("# range = [0, 100]")
            if column.fill is not None:
                lines.append(f"fill = {column.fill!r}")
            if column.categories is not None:
                quoted = (tomli_w.dumps({"_": one})[4:].strip() for one in column.categories)
                lines.append(f"categories = [{', '.join(quoted)}]")
            elif column.kind == CATEGORY:
                lines.append('# categories = ["a", "b"]')
        return "\n".join(lines) + "\n"


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
    kind = fields.get("kind")
    if kind is None:
        kind = CATEGORY if "categories" in fields else NUMBER if "range" in fields else None
    if kind not in (NUMBER, CATEGORY, None):
        raise TableError(f"kind of '{name}' is {kind!r}; it must be 'number' or 'category'.")
    for one in fields:
        _require(file, one, _FIELDS.get(kind or "", ("kind",)), of=f" of the {kind} '{name}'")
    return column_of(name, kind, fields.get("range"), fields.get("fill"), fields.get("categories"))


def _require(file: Path, name: str, names: Sequence[str], of: str = "") -> None:
    if name not in names:
        words = unknown(f"field{of} called", name, names)
        raise TableError(f"{file}: {words}" if not of else words)


def declared(
    *,
    schema: Schema | str | os.PathLike[str] | None = None,
    categories: Mapping[str, Sequence[object]] | None = None,
    categorical: Sequence[str] = (),
    ranges: Mapping[str, Sequence[float]] | None = None,
    fills: Mapping[str, float] | None = None,
    numeric: Sequence[str] = (),
    records: int | None = None,
) -> Schema:
    """What was stated about a table, from a schema and from options, which come first.

    Raises:
        TableError: If a column is said to be of both kinds, or a value makes no sense.
    """
    start = (
        schema if isinstance(schema, Schema) else Schema() if not schema else read_schema(schema)
    )
    for what, names in (("categorical", categorical), ("numeric", numeric)):
        if isinstance(names, str):
            raise TypeError(f"{what} is the text {names!r}; give a list of names.")
    given, fills, ranges = categories or {}, fills or {}, ranges or {}
    texts, numbers = {*given, *categorical}, {*ranges, *fills, *numeric}
    for name in sorted(texts & numbers):
        raise TableError(
            f"The column '{name}' is said to have categories and to be numeric (--range); a column "
            "is one or the other."
        )
    columns = dict(start.columns)
    for name in sorted(texts | numbers):
        was, kind = start[name], CATEGORY if name in texts else NUMBER
        if was.kind not in (None, kind):
            raise TableError(
                f"The column '{name}' is a {was.kind} in the schema, and the options say that it "
                f"is a {kind}; change one of them."
            )
        columns[name] = column_of(
            name,
            kind,
            ranges.get(name, was.range),
            fills.get(name, was.fill),
            given.get(name, was.categories),
        )
    return Schema(columns, start.records if records is None else _records(records))


def column_of(name: str, kind: Any, ends: Any, fill: Any, categories: Any) -> Column:
    """A column, once its values were found to make sense."""
    if ends is not None:
        if not (isinstance(ends, list | tuple) and len(ends) == 2 and all(map(_is_number, ends))):
            raise TableError(f"The range of '{name}' is {ends!r}; give two numbers, [low, high].")
        if not ends[0] < ends[1]:
            low, high = (f"{end:g}" for end in ends)
            raise TableError(f"The range of '{name}' is ({low}, {high}); low must be below high.")
        ends = float(ends[0]), float(ends[1])
    if fill is not None and not _is_number(fill):
        raise TableError(f"The fill of '{name}' is {fill!r}; give a number.")
    if categories is not None:
        if isinstance(categories, str) or not isinstance(categories, Iterable):
            raise TableError(f"The categories of '{name}' are {categories!r}; give a list of them.")
        categories = tuple(str(value).strip() for value in categories)
        if not categories or len(set(categories)) < len(categories) or "" in categories:
            raise TableError(
                f"The categories of '{name}' are {list(categories)}; give at least one, each once, "
                "and none that is empty."
            )
    return Column(kind, ends, None if fill is None else float(fill), categories)


def _records(given: Any) -> int | None:
    if given is not None and not (type(given) is int and given >= 1):
        raise TableError(f"records is {given!r}; it must be a whole number of at least 1.")
    return given


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)
