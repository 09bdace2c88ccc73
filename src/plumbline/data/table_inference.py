"""A table as a data set: the columns are looked at, and what cannot work is refused.

``from_table`` reads a table whose columns are described. Here columns that hold text are recognised
as categorical, names are checked with suggestions, and columns with too many values for what they
are used as are refused before anything is computed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.data.base import Splits, dataset
from plumbline.data.files import DataError, TableError
from plumbline.data.table_files import Table, open_table
from plumbline.data.tables import from_table
from plumbline.registry import unknown

MOST_CLASSES, MOST_GROUPS, MOST_CATEGORIES = 100, 30, 200
_ENOUGH = 2000  # different values of a column that are told apart


@dataset("table")
def table(
    path: str | os.PathLike[str] | Any,
    *,
    target: str,
    sensitive: str | Sequence[str] = (),
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    missing: Literal["error", "drop"] = "error",
    missing_values: Sequence[str] = ("",),
    test: str | os.PathLike[str] | Any | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Splits:
    """A csv or parquet file whose first row names the columns, or a pandas DataFrame.

    Args:
        path: The file, or the DataFrame.
        target: The column to predict: a class.
        sensitive: The columns whose groups are reported; of several, the groups are the
            intersections.
        categorical: Columns of numbers that are categories. Columns of text are found.
        drop: Columns to leave out.
        missing: What to do with rows that lack a value: "error" or "drop".
        missing_values: What a missing cell says.
        test: A second file (or DataFrame) to evaluate on.
        test_fraction: Without it, the share of the rows that is held out.
        seed: Decides which.

    Raises:
        TableError: For a file that is no table, an unknown column, or one that cannot be used so.
    """
    try:
        groups = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive)
        file = open_table(path)
        for column in (target, *groups, *categorical, *drop):
            if column not in file.names:
                words = unknown(f"column of {file.title} called", column, file.names)
                raise TableError(f"{words[0].upper()}{words[1:]}")
        _check_together(target, groups, drop)
        used = [name for name in file.names if name not in (target, *drop)]
        if not used:
            raise TableError(f"{file.title} has no column to learn from beside '{target}'.")
        seen = _look(file, [target, *groups, *used], set(missing_values))
        found = [name for name in used if name not in (*groups, *categorical) and seen[name].words]
        _check_sizes(seen, target, groups, [*categorical, *found])
        return from_table(
            path,
            target=target,
            sensitive=groups,
            categorical=[*categorical, *found],
            drop=drop,
            missing=missing,
            missing_values=missing_values,
            test=test,
            test_fraction=test_fraction,
            seed=seed,
        )
    except TableError:
        raise
    except DataError as error:  # a file of a person's own: they can change it
        raise TableError(str(error)) from error


def _check_together(target: str, sensitive: Sequence[str], drop: Sequence[str]) -> None:
    if target in (*sensitive, *drop):
        raise TableError(f"The target '{target}' cannot be sensitive or dropped as well.")
    if len(set(sensitive)) < len(sensitive):
        raise TableError(f"The sensitive columns are {list(sensitive)}; give each once.")


@dataclass
class _Seen:
    """What a column holds: some of its different values, and some that are no numbers."""

    values: set[str]
    words: set[str]

    @property
    def count(self) -> str:
        """How many different values, in words."""
        return f"{len(self.values):,}" if len(self.values) < _ENOUGH else f"{_ENOUGH:,} or more"


def _look(file: Table, names: Sequence[str], absent: set[str]) -> dict[str, _Seen]:
    """Looks at every row of a table once."""
    seen = {name: _Seen(set(), set()) for name in names}
    for chunk in file.chunks():
        for name, one in seen.items():
            new = set(chunk.columns[name]) - absent
            if len(one.values) < _ENOUGH:
                one.values.update(itertools.islice(new, _ENOUGH))
            if len(one.words) < _ENOUGH and not _all_numbers(new):
                one.words.update(cell for cell in new if not _all_numbers({cell}))
    return seen


def _check_sizes(
    seen: Mapping[str, _Seen],
    target: str,
    sensitive: Sequence[str],
    categorical: Sequence[str],
) -> None:
    """Refuses columns with too many values for what they are used as."""
    uses: list[tuple[str, int, str, str]] = [
        (target, MOST_CLASSES, "the target", "Give a column of classes; numbers are not predicted")
    ]
    uses += [(one, MOST_GROUPS, "sensitive", "Group its values first") for one in sensitive]
    uses += [
        (one, MOST_CATEGORIES, "categorical", f"Leave it out (drop, --drop {one})")
        for one in categorical
    ]
    for name, most, use, advice in uses:
        one = seen[name]
        if len(one.values) > most:
            raise TableError(
                f"The column '{name}' is {use} and has {one.count} different values, such as "
                f"{', '.join(sorted(one.values)[:3])}; at most {most} are allowed. {advice}"
                f"{_nearly_numbers(one)}."
            )
    if len(seen[target].values) < 2:
        raise TableError(f"The target '{target}' has one value only; there is nothing to learn.")


def _nearly_numbers(seen: _Seen) -> str:
    """A hint for a column of numbers in which some word stands for a missing one."""
    if len(seen.words) != 1:
        return ""
    (word,) = seen.words
    return f", or, if {word!r} stands for a missing number, name it (--missing-value {word!r})"


def _all_numbers(cells: set[str]) -> bool:
    try:
        for cell in cells:
            float(cell)
    except ValueError:
        return False
    return True
