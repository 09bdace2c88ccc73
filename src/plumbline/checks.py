"""Checks of settings; each error says what was given and what is allowed."""

from __future__ import annotations

import math


def check_positive(name: str, value: float) -> None:
    """Refuses anything but a positive finite number."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; it must be a positive finite number.")


def check_not_negative(name: str, value: float) -> None:
    """Refuses anything but a finite number of at least zero."""
    if not (is_number(value) and value >= 0):
        raise ValueError(f"{name} is {value!r}; it must be a finite number, not negative.")


def check_decay(name: str, value: float) -> None:
    """Refuses anything but a number of at least zero and below one."""
    if not (is_number(value) and 0 <= value < 1):
        raise ValueError(f"{name} is {value!r}; it must be at least 0 and below 1.")


def check_count(name: str, value: int) -> None:
    """Refuses anything but a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def is_number(value: object) -> bool:
    """Whether it is a finite number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_row_by_row(part: object) -> bool:
    """Whether a part says that it makes each row from that record alone, however many it is given.

    A class says so with ``row_by_row = True``. The records of a batch are given to it at once; to
    all others, one at a time.
    """
    # Said by the very class: one derived from it may do something else.
    return "row_by_row" in vars(type(part)) and getattr(part, "row_by_row") is True  # noqa: B009
