"""Your own table: a csv or parquet file with named target, sensitive and categorical columns.

Categories and ranges are best declared. What is not declared is taken from the training rows (rare
categories, minimum and maximum), which epsilon does not cover: the run works, and its privacy
statement lists it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from plumbline.data.base import Constant, Part, Splits
from plumbline.data.encoding import check_one_of, codes, one_hot, split, to_unit_range
from plumbline.data.files import DataError
from plumbline.data.table_files import Table, read_table


def from_table(
    path: str | os.PathLike[str],
    *,
    target: str,
    sensitive: str | None = None,
    categorical: Mapping[str, Sequence[object]] | Sequence[str] = (),
    ranges: Mapping[str, tuple[float, float]] | None = None,
    classes: Sequence[object] | None = None,
    groups: Sequence[object] | None = None,
    drop: Sequence[str] = (),
    missing: Literal["error", "drop"] = "error",
    missing_values: Sequence[str] = ("",),
    test: str | os.PathLike[str] | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Splits:
    """A data set from a csv or parquet file whose first row names the columns.

    A numeric column becomes one feature, its range mapped to [-1, 1] (what lies outside goes to the
    nearer end); a categorical column becomes one feature per category. In x ``[n, features]`` they
    have the order of the file.

    Args:
        path: The file, ending in ``.csv`` or ``.parquet``.
        target: The column of the class.
        sensitive: The column of the group. It is a categorical feature too, unless dropped.
        categorical: The categorical columns with their categories, or only their names: then the
            categories are those of the training rows, and others in test rows count as none.
        ranges: The lowest and highest value of numeric columns; of those not named here, minimum
            and maximum of the training rows.
        classes: The values of the target; by default those of the training rows, sorted.
        groups: The values of the sensitive column; by default those of the training rows, sorted.
        drop: Columns to leave out.
        missing: What to do with a row in which a cell is missing: "error" or "drop".
        missing_values: What a missing cell says.
        test: A second file with the test rows; without it they are split off.
        test_fraction: The share of the rows to split off.
        seed: Decides which.

    Raises:
        DataError: For an unknown category, a missing cell or one that is no number, naming row and
            column; and for a damaged file.
    """
    check_one_of("missing", missing, ("error", "drop"))
    categories = _categories(categorical, sensitive, groups)
    table = read_table(path)
    names = [target, *([sensitive] if sensitive is not None else []), *categories, *(ranges or {})]
    _check_names(table, [*names, *drop], path)
    used = [name for name in table.columns if name in (target, sensitive) or name not in drop]
    train = _complete(table, used, missing, missing_values)
    if test is None:
        generator = torch.Generator("cpu").manual_seed(seed)
        parts = split(len(train), test_fraction, generator)
        train, other = (train.keep(part.tolist()) for part in parts)
    else:
        other = read_table(test)
        _check_names(other, used, test)
        other = _complete(other, used, missing, missing_values)
    if not len(train) or not len(other):
        raise DataError(
            f"{path} leaves {len(train)} training and {len(other)} test rows; both must be there."
        )
    features = [name for name in used if name != target and name not in drop]
    numeric = [name for name in features if name not in categories]
    _check_kinds(numeric, categories, dict(ranges or {}), target)
    encoder = _Encoder(train, target, sensitive, features, categories, dict(ranges or {}), classes)
    return Splits(
        Path(path).stem,
        encoder.part(train),
        encoder.part(other),
        classes=encoder.classes,
        groups=encoder.groups,
        constants=encoder.constants,
        features=encoder.names,
    )


class _Encoder:
    """Everything that turns rows into numbers, declared or taken from the training rows."""

    def __init__(
        self,
        train: Table,
        target: str,
        sensitive: str | None,
        features: list[str],
        categories: dict[str, list[str] | None],
        ranges: dict[str, tuple[float, float]],
        classes: Sequence[object] | None,
    ) -> None:
        self._target, self._sensitive, self._features = target, sensitive, features
        self._declared = {name for name, values in categories.items() if values is not None}
        self._values = {
            name: sorted(set(train.columns[name])) if values is None else values
            for name, values in categories.items()
        }
        self._ranges = ranges | {
            name: (float(numbers.min()), float(numbers.max()))
            for name in features
            if name not in categories and name not in ranges
            for numbers in [_numbers(train, name)]
        }
        self.classes = tuple(
            sorted(set(train.columns[target])) if classes is None else _texts(classes)
        )
        self.groups = () if sensitive is None else tuple(self._values[sensitive])
        self.names = tuple(name for feature in features for name in self._named(feature))
        coded = [name for name in self._values if name in features or name == sensitive]
        self.constants = (
            *_constants("the categories of", coded, self._declared),
            *_constants("the lowest and highest value of", self._ranges, set(ranges)),
            *_constants("the classes of", [target], set() if classes is None else {target}),
        )

    def part(self, table: Table) -> Part:
        """The rows of a table as records."""
        rows = table.rows.__getitem__
        x = torch.cat([self._encoded(table, name) for name in self._features], 1)
        y = codes(table.columns[self._target], self.classes, self._target, rows)
        if self._sensitive is None:
            return Part(x, y)
        return Part(x, y, codes(table.columns[self._sensitive], self.groups, self._sensitive, rows))

    def _encoded(self, table: Table, name: str) -> Tensor:
        if name in self._ranges:
            return to_unit_range(_numbers(table, name), self._ranges[name])[:, None]
        cells, values = table.columns[name], self._values[name]
        if name in self._declared:
            return one_hot(cells, values, name, table.rows.__getitem__)
        # A category that only test rows have is a row of zeros. (No cell is a blank.)
        known = set(values)
        cells = [cell if cell in known else " " for cell in cells]
        return one_hot(cells, [*values, " "], name)[:, :-1]

    def _named(self, name: str) -> list[str]:
        if name in self._ranges:
            return [name]
        return [f"{name}={value}" for value in self._values[name]]


def _categories(
    given: Mapping[str, Sequence[object]] | Sequence[str],
    sensitive: str | None,
    groups: Sequence[object] | None,
) -> dict[str, list[str] | None]:
    """The values of each categorical column, None where they are to be found out."""
    if isinstance(given, str):
        raise TypeError(f"categorical is the text {given!r}; give a list of names, or a mapping.")
    categories: dict[str, list[str] | None] = dict.fromkeys(given)
    if isinstance(given, Mapping):
        categories = {name: _texts(values) for name, values in given.items()}
    if groups is not None and sensitive is None:
        raise ValueError("groups are given without a sensitive column; name it with sensitive=.")
    if sensitive is not None and (groups is not None or sensitive not in categories):
        categories[sensitive] = None if groups is None else _texts(groups)
    for name, values in categories.items():
        if values is not None and (not values or len(set(values)) < len(values)):
            raise ValueError(f"The column '{name}' has the categories {values}; give each once.")
    return categories


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value).strip() for value in values]


def _check_names(table: Table, names: Sequence[str], path: str | os.PathLike[str]) -> None:
    unknown = [name for name in dict.fromkeys(names) if name not in table.columns]
    if unknown:
        raise ValueError(
            f"{os.fspath(path)} has no column {', '.join(map(repr, unknown))}; its columns are "
            f"{', '.join(table.columns)}."
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


def _complete(table: Table, used: Sequence[str], missing: str, values: Sequence[str]) -> Table:
    """The rows in which no cell of the columns in use is missing."""
    absent = set(values)
    gaps: dict[int, str] = {}
    for name in used:
        gaps |= {k: name for k, cell in enumerate(table.columns[name]) if cell in absent}
    if not gaps:
        return table
    if missing == "error":
        row = min(gaps)
        raise DataError(
            f"The column '{gaps[row]}' has no value in {table.rows[row]}; {len(gaps):,} of "
            f"{len(table):,} rows have such cells. Fill them, leave these rows out with "
            'missing="drop", or the column with drop=[...].'
        )
    return table.keep([row for row in range(len(table)) if row not in gaps])


def _numbers(table: Table, name: str) -> Tensor:
    """A numeric column, ``[n]`` of float64."""
    numbers = []
    for row, cell in enumerate(table.columns[name]):
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise DataError(
                f"The column '{name}' has {cell!r} in {table.rows[row]}, which is no finite "
                "number. If the column is categorical, name it in categorical=; if it is of no "
                "use, in drop=."
            )
        numbers.append(number)
    return torch.tensor(numbers, dtype=torch.float64)


def _constants(what: str, names: Iterable[str], declared: set[str]) -> list[Constant]:
    """One for the columns that are declared, one for those that are not."""
    own = [name for name in names if name in declared]
    found = [name for name in names if name not in declared]
    stated = [Constant(f"{what} {', '.join(own)}", "public")] if own else []
    return [*stated, *([Constant(f"{what} {', '.join(found)}", "training")] if found else [])]
