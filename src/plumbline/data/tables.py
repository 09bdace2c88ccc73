"""A table as a data set: a csv or parquet file, or a DataFrame, with a target and other columns.

Columns of text are categorical; categories and ranges are best declared. What is not declared is
taken from the training rows (rare categories, minimum and maximum), which epsilon does not cover:
the run works, and its privacy statement lists it. The file is read several times in pieces (what
the columns hold, what the training rows hold, each part's numbers), so that beside the numbers
themselves little is in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from plumbline.data.base import Constant, Split, Splits, dataset, not_covered
from plumbline.data.encoding import Where, check_one_of, codes, split
from plumbline.data.files import DataError, TableError
from plumbline.data.table_encoding import Categorical, Numeric, TableEncoding, to_numbers
from plumbline.data.table_files import Table, TableChunk, TableSource, open_table
from plumbline.data.table_inference import (
    MOST_CATEGORIES,
    MOST_CLASSES,
    MOST_GROUPS,
    Contents,
    check_names,
    look,
)

Categories = dict[str, list[str] | None]
"""The values of categorical columns; None where they are to be found in the training rows."""

_NO_NUMBER = (
    " If it stands for a missing one, name it in missing_values (--missing-value) and leave these "
    "rows out (--missing drop). If the column is categorical, name it in categorical "
    "(--categorical); if it is of no use, in drop (--drop)."
)


@dataset("table")
def table(
    path: TableSource,
    *,
    target: str,
    sensitive: str | Sequence[str] = (),
    categorical: Mapping[str, Sequence[object]] | Sequence[str] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    classes: Sequence[object] | None = None,
    groups: Sequence[object] | None = None,
    drop: Sequence[str] = (),
    missing: Literal["error", "drop"] = "error",
    missing_values: Sequence[str] = ("",),
    test: TableSource | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Splits:
    """A csv or parquet file whose first row names the columns, or a pandas DataFrame.

    A numeric column becomes one feature, its range mapped to [-1, 1] (what lies outside goes to the
    nearer end); a categorical column becomes one feature per category. In x ``[n, features]`` they
    have the order of the file.

    Args:
        path: The file, ending in ``.csv`` or ``.parquet``; or the DataFrame.
        target: The column to predict: a class.
        sensitive: The column of the group; of several columns, the groups are the intersections.
            They are categorical features too, unless dropped.
        categorical: Columns of numbers that are categories; columns of text are found. With their
            categories, as in ``{"city": ["Oslo", "Rome"]}``, or without: then the categories are
            those of the training rows, and others in test rows count as none.
        ranges: The lowest and highest value of numeric columns; of those not named here, minimum
            and maximum of the training rows.
        classes: The values of the target; by default those of the training rows, sorted.
        groups: The values of a single sensitive column; by default those of the training rows,
            sorted.
        drop: Columns to leave out.
        missing: What to do with a row in which a cell is missing: "error" or "drop".
        missing_values: What a missing cell says.
        test: A second file or DataFrame with the test rows; without it they are split off.
        test_fraction: The share of the rows to split off.
        seed: Decides which.

    Raises:
        TableError: For a file that is no table, an unknown column, or one that cannot be used so;
            and for an unknown category, a missing cell or one that is no number, by row and column.
    """
    with _own_file():
        check_one_of("missing", missing, ("error", "drop"))
        by = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive or ())
        ends = {name: (low, high) for name, (low, high) in (ranges or {}).items()}
        categories = _declared(categorical, by, groups)
        source = open_table(path)
        check_names(source, [target, *by, *categories, *ends, *drop])
        _check_together(target, by, categories, drop)
        used = [name for name in source.names if name in (target, *by) or name not in drop]
        features = [name for name in used if name != target and name not in drop]
        if not features:
            raise TableError(f"{source.title} has no column to learn from beside '{target}'.")
        contents = look(source, used, missing_values)
        of_text = (name for name in features if contents.columns[name].words)
        categories |= {name: None for name in of_text if name not in {**categories, **ends}}
        _check_ranges(ends, [name for name in features if name not in categories])
        _check_sizes(contents, target, classes, by, categories)
        if missing == "error":
            contents.require_complete((target, *by))
        rows = contents.complete
        if test is None:
            generator = torch.Generator("cpu").manual_seed(seed)
            train, held_out = split(len(rows), test_fraction, generator)
            parts = [_Rows(source, rows[train]), _Rows(source, rows[held_out])]
        else:
            second = open_table(test)
            check_names(second, used)
            later = look(second, used, missing_values)
            if missing == "error":
                later.require_complete((target, *by))
            parts = [_Rows(source, rows), _Rows(second, later.complete)]
        if not all(len(part.rows) for part in parts):
            raise TableError(
                f"{source.title} leaves {len(parts[0].rows)} training and {len(parts[1].rows)} "
                "test rows; both must be there."
            )
        encoder = _Encoder(
            parts[0], target, by, features, categories, ends, classes, missing_values
        )
        return Splits(
            source.path.stem if source.path else "own",
            encoder.records(parts[0]),
            encoder.records(parts[1]),
            classes=encoder.encoding.classes,
            groups=encoder.groups,
            constants=encoder.constants,
            features=encoder.encoding.features,
            encoding=encoder.encoding,
        )


@contextmanager
def _own_file() -> Iterator[None]:
    """Errors of a person's own file say that they can change it."""
    try:
        yield
    except TableError:
        raise
    except DataError as error:
        raise TableError(str(error)) from error


@dataclass(frozen=True)
class _Rows:
    """Rows of a table, in an order of their own.

    Attributes:
        table: The table.
        rows: Their places in it, ``[n]``.
    """

    table: Table
    rows: Tensor

    def where(self, chunk: TableChunk) -> Where:
        """From a place in a chunk to the row in words."""
        return lambda place: self.table.where(chunk.rows[place])

    def pieces(self) -> Iterator[tuple[TableChunk, Tensor]]:
        """The rows as they come in the file, and the place that each has here, ``[R]``."""
        order = self.rows.argsort()
        found = self.rows[order]
        for chunk in self.table.chunks():
            first = chunk.rows[0]
            ends = torch.tensor([first, first + len(chunk)])
            start, end = torch.searchsorted(found, ends).tolist()
            if end - start < len(chunk):
                chunk = chunk.keep((found[start:end] - first).tolist())
            if len(chunk):
                yield chunk, order[start:end]


class _Encoder:
    """Everything that turns rows into numbers, declared or taken from the training rows."""

    def __init__(
        self,
        training: _Rows,
        target: str,
        sensitive: tuple[str, ...],
        features: list[str],
        categories: Categories,
        ranges: dict[str, tuple[float, float]],
        classes: Sequence[object] | None,
        missing_values: Sequence[str],
    ) -> None:
        own = {target: None if classes is None else _texts(classes)}
        declared = {name for name, values in (categories | own).items() if values is not None}
        numeric = [name for name in features if name not in categories and name not in ranges]
        found_ends, found = _found(
            training, numeric, [name for name in (*categories, target) if name not in declared]
        )
        values = {
            name: found[name] if given is None else given
            for name, given in (categories | own).items()
        }
        ends = ranges | found_ends
        apart = [name for name in sensitive if name not in features]
        coded = [*(name for name in features if name in categories), *apart]
        self._sensitive = {name: values[name] for name in sensitive}
        self.groups = _intersections(self._sensitive)
        self.constants = (
            *_constants("the categories of", coded, declared),
            *_constants("the lowest and highest value of", ends, set(ranges)),
            *_constants("the classes of", [target], declared),
        )
        self.encoding = TableEncoding(
            target=target,
            classes=tuple(values[target]),
            columns=tuple(
                Numeric(name, *ends[name])
                if name in ends
                else Categorical(name, tuple(values[name]), name in declared)
                for name in features
            ),
            missing_values=tuple(missing_values),
            not_covered=not_covered(self.constants),
        )

    def records(self, rows: _Rows) -> Split:
        """The rows as numbers: x ``[n, features]``, y ``[n]`` and the groups ``[n]``."""
        x = torch.empty(len(rows.rows), len(self.encoding.features))
        y, group = torch.zeros(2, len(x), dtype=torch.int64)
        for chunk, places in rows.pieces():
            cells, where, target = chunk.columns, rows.where(chunk), self.encoding.target
            x[places] = self.encoding.encode(chunk, where, _NO_NUMBER)
            y[places] = codes(cells[target], self.encoding.classes, target, where)
            for name, values in self._sensitive.items():
                own = codes(cells[name], values, name, where)
                group[places] = group[places] * len(values) + own
        return Split(x, y, group if self._sensitive else None)


def _found(
    rows: _Rows, numeric: Sequence[str], others: Sequence[str]
) -> tuple[dict[str, tuple[float, float]], dict[str, list[str]]]:
    """The ends of numeric columns and the values of others, in these rows."""
    ends = dict.fromkeys(numeric, (math.inf, -math.inf))
    values: dict[str, set[str]] = {name: set() for name in others}
    for chunk, _ in rows.pieces() if numeric or others else ():
        for name, (low, high) in ends.items():
            numbers = to_numbers(chunk.columns[name], name, rows.where(chunk), _NO_NUMBER)
            ends[name] = min(low, float(numbers.min())), max(high, float(numbers.max()))
        for name in others:
            values[name].update(chunk.columns[name])
    return ends, {name: sorted(seen) for name, seen in values.items()}


def _declared(
    given: Mapping[str, Sequence[object]] | Sequence[str],
    sensitive: tuple[str, ...],
    groups: Sequence[object] | None,
) -> Categories:
    if isinstance(given, str):
        raise TypeError(f"categorical is the text {given!r}; give a list of names, or a mapping.")
    categories: Categories = dict.fromkeys(given)
    if isinstance(given, Mapping):
        categories = {name: _texts(values) for name, values in given.items()}
    if groups is not None and len(sensitive) != 1:
        raise TableError(
            "groups are given without a sensitive column, or with several; name one, sensitive=."
        )
    for name in sensitive:
        if groups is not None or name not in categories:
            categories[name] = None if groups is None else _texts(groups)
    for name, values in categories.items():
        if values is not None and (not values or len(set(values)) < len(values)):
            raise TableError(f"The column '{name}' has the categories {values}; give each once.")
    return categories


def _intersections(sensitive: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The groups' names: a column's values, or "sex=f & city=Oslo" for several columns."""
    if len(sensitive) == 1:
        return tuple(*sensitive.values())
    named = [[f"{name}={value}" for value in values] for name, values in sensitive.items()]
    return tuple(" & ".join(parts) for parts in itertools.product(*named)) if named else ()


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value).strip() for value in values]


def _check_together(
    target: str, sensitive: Sequence[str], categories: Categories, drop: Sequence[str]
) -> None:
    if target in (*sensitive, *drop):
        raise TableError(f"The target '{target}' cannot be sensitive or dropped as well.")
    if target in categories:
        raise TableError(f"The target '{target}' is also a categorical column; give classes=.")
    if len(set(sensitive)) < len(sensitive):
        raise TableError(f"The sensitive columns are {list(sensitive)}; give each once.")


def _check_ranges(ranges: Mapping[str, tuple[float, float]], numeric: Sequence[str]) -> None:
    for name, (low, high) in ranges.items():
        if name not in numeric:
            raise TableError(
                f"There is a range for '{name}', which is no numeric feature: it is the target, "
                "categorical, or dropped."
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise TableError(f"The range of '{name}' is ({low}, {high}); low must be below high.")


def _check_sizes(
    contents: Contents,
    target: str,
    classes: Sequence[object] | None,
    sensitive: Sequence[str],
    categories: Categories,
) -> None:
    """Refuses columns with too many values, where their values are not declared."""
    if classes is None:
        advice = "Give a column of classes; numbers are not predicted"
        contents.columns[target].check_size(target, MOST_CLASSES, "the target", advice)
    if len(contents.columns[target].values if classes is None else classes) < 2:
        raise TableError(f"The target '{target}' has one value only; there is nothing to learn.")
    for name, values in categories.items():
        if values is None and name in sensitive:
            advice = "Group its values first"
            contents.columns[name].check_size(name, MOST_GROUPS, "sensitive", advice)
        elif values is None and name in contents.columns:
            advice = f"Leave it out (drop, --drop {name})"
            contents.columns[name].check_size(name, MOST_CATEGORIES, "categorical", advice)


def _constants(what: str, names: Iterable[str], declared: set[str]) -> list[Constant]:
    """One for the columns that are declared, one for those that are not."""
    own = [name for name in names if name in declared]
    found = [name for name in names if name not in declared]
    stated = [Constant(f"{what} {', '.join(own)}", "public")] if own else []
    return [*stated, *([Constant(f"{what} {', '.join(found)}", "training")] if found else [])]
