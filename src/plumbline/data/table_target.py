"""The target of a table: classes, or a number within a public range.

Which of the two it is, is said (``task``, ``--task``) or follows from what is declared: a range
makes it a number, values make it classes. Where nothing is declared it is taken for classes, unless
its cells are numbers of many values, which is refused: they may be amounts. A number is mapped to
[-1, 1] like any other numeric column; of the test rows, also what lies outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plumbline.data.encoding import to_unit_range
from plumbline.data.files import TableError
from plumbline.data.numbers import numbers_of
from plumbline.data.table_counts import ColumnCounts
from plumbline.data.table_options import Task
from plumbline.data.table_schema import CATEGORY, NUMBER, Column, Kind

_NO_YES = (
    ("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("0", "1"), ("0.0", "1.0"),
    ("off", "on"), ("nein", "ja"), ("nee", "ja"), ("nej", "ja"), ("non", "oui"), ("no", "si"),
    ("no", "sí"), ("no", "sì"), ("não", "sim"), ("nie", "tak"), ("negative", "positive"),
)  # fmt: skip
MANY = 10
"""So many different numbers are still taken for classes without a word."""


def is_yes_no(values: Iterable[str]) -> bool:
    """Whether these are the words for yes and no, in some language."""
    return _no_and_yes(values) is not None


def in_class_order(values: Iterable[str]) -> tuple[str, ...]:
    """Values by name; but yes after no, since the second of two classes is the positive one."""
    ordered = sorted(values)
    words = _no_and_yes(ordered)
    return tuple(sorted(ordered, key=lambda value: words.index(value.casefold()) if words else 0))


def _no_and_yes(values: Iterable[str]) -> tuple[str, str] | None:
    found = {value.casefold() for value in values}
    return next((words for words in _NO_YES if set(words) == found), None)


def is_number(options: Mapping[str, Any]) -> bool:
    """Whether the target is a number, by the options of ``table``."""
    if options.get("task") is not None:
        return bool(options["task"] == "regression")
    target = options.get("target")
    return any(target in (options.get(name) or ()) for name in ("ranges", "numeric"))


def as_target(name: str, column: Column, task: Task | None, *, found: bool = False) -> Column:
    """What is known of the target's column, with its kind.

    Args:
        name: The column.
        column: What is known of it.
        task: What it is said to be.
        found: Whether its values were found privately: there may be others than one that was.

    Raises:
        TableError: If what is declared contradicts the task.
    """
    if task is None:
        task = "regression" if column.kind == NUMBER else "classification"
    kind: Kind = NUMBER if task == "regression" else CATEGORY
    if column.kind not in (None, NUMBER, CATEGORY):
        raise TableError(
            f"The column '{name}' is said to be a {column.kind}, and it is the target: that is a "
            "class or a number. Give its values (categories, --categories) or its range."
        )
    if column.kind not in (None, kind):
        said = "a range" if kind == CATEGORY else "values"
        other = "a class" if kind == CATEGORY else "a number"
        raise TableError(
            f"The target '{name}' is declared with {said}, and --task {task} makes it {other}. "
            "Leave one of the two out."
        )
    if column.categories is not None and len(column.categories) < 2 and not found:
        raise _one_value(name)
    return replace(column, kind=kind)


def require_classes(name: str, column: ColumnCounts, *, said: bool) -> None:
    """Refuses one value only, and numbers of many values if nobody has said what they are."""
    if len(column.categories) < 2:
        raise _one_value(name)
    if not said and column.numbers > column.words and len(column.categories) > MANY:
        raise TableError(
            f"The target '{name}' holds numbers, more than {MANY} different ones: are they amounts "
            f"or classes? Say --task regression to predict a number, with --range {name}=LOW:HIGH "
            "if its range is public; or --task classification to make each one a class."
        )


def _one_value(name: str) -> TableError:
    return TableError(f"The target '{name}' has one value only; there is nothing to learn.")


def numbers_of_target(cells: Sequence[str], ends: tuple[float, float], *, test: bool) -> Tensor:
    """The targets of some rows, ``[R]`` float32, with ``ends`` as -1 and 1.

    What lies outside goes to the nearer end; of test rows it stays where it is, so that metrics
    are those of the numbers as they are.
    """
    found = torch.from_numpy(np.ascontiguousarray(numbers_of(cells)))
    if not test:
        return to_unit_range(found, ends)
    middle, half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2 or 1.0
    return ((found - middle) / half).float()
