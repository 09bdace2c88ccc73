"""Your own table: a csv or parquet file, or a DataFrame, with a target and other named columns.

Categories and ranges are best declared. What is not declared is taken from the training rows (rare
categories, minimum and maximum), which epsilon does not cover: the run works, and its privacy
statement lists it. The file is read three times in pieces (which rows are complete, what the
training rows hold, their numbers), so that beside the numbers themselves little is in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from plumbline.data.base import Constant, Split, Splits, not_covered
from plumbline.data.encoding import Where, check_one_of, codes, split
from plumbline.data.files import TableError
from plumbline.data.table_encoding import Categorical, Numeric, TableEncoding, to_numbers
from plumbline.data.table_files import Table, TableChunk, TableFile, TableSource, open_table

_NO_NUMBER = (
    " If it stands for a missing one, name it in missing_values (--missing-value) and leave these "
    "rows out (--missing drop). If the column is categorical, name it in categorical "
    "(--categorical); if it is of no use, in drop (--drop)."
)


def from_table(
    path: TableSource,
    *,
    target: str,
    sensitive: str | Sequence[str] | None = None,
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
    name: str | None = None,
) -> Splits:
    """A data set from a csv or parquet file whose first row names the columns, or a DataFrame.

    A numeric column becomes one feature, its range mapped to [-1, 1] (what lies outside goes to the
    nearer end); a categorical column becomes one feature per category. In x ``[n, features]`` they
    have the order of the file.

    Args:
        path: The file, ending in ``.csv`` or ``.parquet``; or a pandas DataFrame.
        target: The column of the class.
        sensitive: The column of the group; of several columns, the groups are the intersections.
            They are categorical features too, unless dropped.
        categorical: The categorical columns with their categories, or only their names: then the
            categories are those of the training rows, and others in test rows count as none.
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
        name: The data set's name; by default the file's, without its ending.

    Raises:
        TableError: For an unknown category, a missing cell or one that is no number, naming row and
            column; and for a damaged file.
    """
    check_one_of("missing", missing, ("error", "drop"))
    by = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive or ())
    categories = _categories(categorical, by, groups)
    table = open_table(path)
    names = [target, *by, *categories, *(ranges or {})]
    _check_names(table, [*names, *drop])
    needed = (target, *by)
    used = [name for name in table.names if name in needed or name not in drop]
    rows = _complete(table, used, needed, missing, missing_values)
    if test is None:
        generator = torch.Generator("cpu").manual_seed(seed)
        order, later = split(len(rows), test_fraction, generator)
        training, own, other = len(order), _Rows(table, rows[torch.cat([order, later])]), None
        testing = len(later)
    else:
        second = open_table(test)
        _check_names(second, used)
        training, own = len(rows), _Rows(table, rows)
        other = _Rows(second, _complete(second, used, needed, missing, missing_values))
        testing = len(other.rows)
    if not training or not testing:
        raise TableError(
            f"{table.title} leaves {training} training and {testing} test rows; both must be there."
        )
    features = [name for name in used if name != target and name not in drop]
    numeric = [name for name in features if name not in categories]
    _check_kinds(numeric, categories, dict(ranges or {}), target)
    encoder = _Encoder(
        own,
        training,
        target,
        by,
        features,
        categories,
        dict(ranges or {}),
        classes,
        missing_values,
    )
    everything = encoder.records(own)
    return Splits(
        name or (table.path.stem if isinstance(table, TableFile) else "own"),
        _part(everything, slice(training)),
        _part(everything, slice(training, None))
        if other is None
        else _part(encoder.records(other), slice(None)),
        classes=encoder.encoding.classes,
        groups=encoder.groups,
        constants=encoder.constants,
        features=encoder.encoding.features,
        encoding=encoder.encoding,
    )


@dataclass(frozen=True)
class _Rows:
    """Rows of a table, in an order of their own: those for training first.

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


_Records = tuple[Tensor, Tensor, Tensor | None]


def _part(records: _Records, cut: slice) -> Split:
    x, y, group = records
    return Split(x[cut], y[cut], None if group is None else group[cut])


class _Encoder:
    """Everything that turns rows into numbers, declared or taken from the training rows."""

    def __init__(
        self,
        rows: _Rows,
        training: int,
        target: str,
        sensitive: tuple[str, ...],
        features: list[str],
        categories: dict[str, list[str] | None],
        ranges: dict[str, tuple[float, float]],
        classes: Sequence[object] | None,
        missing_values: Sequence[str],
    ) -> None:
        declared = {name for name, values in categories.items() if values is not None}
        numeric = [name for name in features if name not in categories and name not in ranges]
        unknown = [name for name, values in categories.items() if values is None]
        wanted = [*unknown, *([target] if classes is None else [])]
        found = _Found.of(rows, training, numeric, wanted)
        values = {
            name: sorted(found.values[name]) if given is None else given
            for name, given in categories.items()
        }
        ends = ranges | found.ranges
        coded = [name for name in values if name in features or name in sensitive]
        self._sensitive = {name: values[name] for name in sensitive}
        self.groups = _intersections(self._sensitive)
        self.constants = (
            *_constants("the categories of", coded, declared),
            *_constants("the lowest and highest value of", ends, set(ranges)),
            *_constants("the classes of", [target], set() if classes is None else {target}),
        )
        self.encoding = TableEncoding(
            target=target,
            classes=tuple(sorted(found.values[target]) if classes is None else _texts(classes)),
            columns=tuple(
                Numeric(name, *ends[name])
                if name in ends
                else Categorical(name, tuple(values[name]), name in declared)
                for name in features
            ),
            missing_values=tuple(missing_values),
            not_covered=not_covered(self.constants),
        )

    def records(self, rows: _Rows) -> _Records:
        """The rows as numbers: x ``[n, features]``, y ``[n]`` and the groups ``[n]``."""
        x = torch.empty(len(rows.rows), len(self.encoding.features))
        y = torch.empty(len(x), dtype=torch.int64)
        group = torch.empty_like(y) if self._sensitive else None
        for chunk, places in rows.pieces():
            x[places] = self.encoding.encode(chunk, rows.where(chunk), _NO_NUMBER)
            y[places] = self._codes(rows, chunk, self.encoding.target, self.encoding.classes)
            if group is not None:
                group[places] = self._groups(rows, chunk)
        return x, y, group

    def _groups(self, rows: _Rows, chunk: TableChunk) -> Tensor:
        """Each row's group by its place in ``groups``, ``[R]``."""
        place = torch.zeros(len(chunk), dtype=torch.int64)
        for name, values in self._sensitive.items():
            place = place * len(values) + self._codes(rows, chunk, name, values)
        return place

    def _codes(self, rows: _Rows, chunk: TableChunk, name: str, values: Sequence[str]) -> Tensor:
        return codes(chunk.columns[name], values, name, rows.where(chunk))


@dataclass
class _Found:
    """What rows hold: the ends of numeric columns, and the values of others."""

    ranges: dict[str, tuple[float, float]]
    values: dict[str, set[str]]

    @classmethod
    def of(
        cls, rows: _Rows, training: int, numeric: Sequence[str], others: Sequence[str]
    ) -> _Found:
        """Looks once at those of the rows that are for training."""
        found = cls({}, {name: set() for name in others})
        for chunk, places in rows.pieces() if numeric or others else ():
            own = (places < training).nonzero()[:, 0]
            for name in numeric if len(own) else ():
                cells, where = chunk.columns[name], rows.where(chunk)
                numbers = to_numbers(cells, name, where, _NO_NUMBER)[own]
                low, high = found.ranges.get(name, (math.inf, -math.inf))
                found.ranges[name] = (
                    min(low, float(numbers.min())),
                    max(high, float(numbers.max())),
                )
            for name in others:
                cells = chunk.columns[name]
                found.values[name].update(cells[place] for place in own.tolist())
        return found


def _categories(
    given: Mapping[str, Sequence[object]] | Sequence[str],
    sensitive: tuple[str, ...],
    groups: Sequence[object] | None,
) -> dict[str, list[str] | None]:
    """The values of each categorical column, None where they are to be found out."""
    if isinstance(given, str):
        raise TypeError(f"categorical is the text {given!r}; give a list of names, or a mapping.")
    categories: dict[str, list[str] | None] = dict.fromkeys(given)
    if isinstance(given, Mapping):
        categories = {name: _texts(values) for name, values in given.items()}
    if groups is not None and len(sensitive) != 1:
        raise ValueError("groups are given; then one sensitive column must be named: sensitive=.")
    for name in sensitive:
        if groups is not None or name not in categories:
            categories[name] = None if groups is None else _texts(groups)
    for name, values in categories.items():
        if values is not None and (not values or len(set(values)) < len(values)):
            raise ValueError(f"The column '{name}' has the categories {values}; give each once.")
    return categories


def _intersections(sensitive: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The groups' names: a column's values, or "sex=f & city=Oslo" for several columns."""
    if len(sensitive) == 1:
        return tuple(*sensitive.values())
    named = [[f"{name}={value}" for value in values] for name, values in sensitive.items()]
    return tuple(" & ".join(parts) for parts in itertools.product(*named)) if named else ()


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value).strip() for value in values]


def _check_names(table: Table, names: Sequence[str]) -> None:
    unknown = [name for name in dict.fromkeys(names) if name not in table.names]
    if unknown:
        raise ValueError(
            f"{table.title} has no column {', '.join(map(repr, unknown))}; its columns are "
            f"{', '.join(table.names)}."
        )


def _check_kinds(
    numeric: Sequence[str],
    categories: Mapping[str, object],
    ranges: Mapping[str, tuple[float, float]],
    target: str,
) -> None:
    if target in categories:
        raise ValueError(f"The target '{target}' is also a categorical column; give classes=.")
    for name, (low, high) in ranges.items():
        if name not in numeric:
            raise ValueError(
                f"There is a range for '{name}', which is no numeric feature: it is the target, "
                "categorical, or dropped."
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"The range of '{name}' is ({low}, {high}); low must be below high.")


def _complete(
    table: Table,
    used: Sequence[str],
    needed: Sequence[str],
    missing: str,
    values: Sequence[str],
) -> Tensor:
    """The places of the rows in which no cell of the columns in use is missing, ``[n]``."""
    absent = set(values)
    kept, count, gaps, first = [], 0, 0, None
    for chunk in table.chunks():
        here = {
            place: name
            for name in used
            if not absent.isdisjoint(chunk.columns[name])
            for place, cell in enumerate(chunk.columns[name])
            if cell in absent
        }
        if here and first is None:
            first = here[min(here)], table.where(chunk.rows[min(here)])
        count, gaps = count + len(chunk), gaps + len(here)
        whole = np.ones(len(chunk), bool)
        whole[list(here)] = False
        kept.append(torch.from_numpy(chunk.rows[0] + np.flatnonzero(whole)))
    if first is not None and missing == "error":
        name, row = first
        ways = "Fill them, or leave these rows out (--missing drop)"
        if name not in needed:  # the target is predicted, and the groups are told apart
            ways += f", or the column (--drop {name})"
        raise TableError(
            f"The column '{name}' has no value in {row}; {gaps:,} of {count:,} rows have such "
            f"cells. {ways}."
        )
    return torch.cat(kept)


def _constants(what: str, names: Iterable[str], declared: set[str]) -> list[Constant]:
    """One for the columns that are declared, one for those that are not."""
    own = [name for name in names if name in declared]
    found = [name for name in names if name not in declared]
    stated = [Constant(f"{what} {', '.join(own)}", "public")] if own else []
    return [*stated, *([Constant(f"{what} {', '.join(found)}", "training")] if found else [])]
