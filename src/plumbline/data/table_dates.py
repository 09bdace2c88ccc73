"""Dates in a table: cells as days since 1970-01-01, and what a model sees of a day.

In which order day, month and year stand is declared, and never found in the rows: 03/04/2021 is two
days. Years have four digits, since two are two centuries; a time of day after the date is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Order = Literal["ymd", "dmy", "mdy"]
ORDERS: Final = ("ymd", "dmy", "mdy")
Numbers = npt.NDArray[np.float64]

_EPOCH = date(1970, 1, 1).toordinal()
_TIME = r"(?:[T ].*)?"
_PATTERNS = {
    "ymd": re.compile(rf"(?P<y>\d{{4}})([-/.])(?P<m>\d\d?)\2(?P<d>\d\d?){_TIME}"),
    "dmy": re.compile(rf"(?P<d>\d\d?)([-/.])(?P<m>\d\d?)\2(?P<y>\d{{4}}){_TIME}"),
    "mdy": re.compile(rf"(?P<m>\d\d?)([-/.])(?P<d>\d\d?)\2(?P<y>\d{{4}}){_TIME}"),
}
_COMPACT = re.compile(r"(?P<y>\d{4})(?P<m>\d\d)(?P<d>\d\d)")
# 3 March 2021, 03-Mar-2021, 03MAR2021: the same day in every order.
_NAMED = re.compile(rf"(?P<d>\d\d?)[- ]?(?P<m>[A-Za-z]{{3,9}})\.?[-, ]*(?P<y>\d{{4}}){_TIME}")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip


def days_of(cells: Sequence[str], order: Order = "ymd") -> Numbers:
    """The cells as days since 1970-01-01, ``[R]``; NaN where a cell is no date."""
    known = {cell: _day(cell, order) for cell in set(cells)}
    return np.array([known[cell] for cell in cells], np.float64)


def iso(day: float) -> str:
    """A day as 2021-04-03."""
    return date.fromordinal(_EPOCH + round(day)).isoformat()


def turns(days: Numbers) -> Numbers:
    """Where a day lies in its year, by month, and in its week: two sines and cosines, ``[R, 4]``.

    So December lies beside January, and Sunday beside Monday.
    """
    whole = np.floor(days).astype("datetime64[D]")
    month = whole.astype("datetime64[M]").astype(np.int64) % 12
    weekday = (whole.astype(np.int64) + 3) % 7  # 1970 began on a Thursday
    year, week = 2 * np.pi * month / 12, 2 * np.pi * weekday / 7
    return np.stack([np.sin(year), np.cos(year), np.sin(week), np.cos(week)], 1)


TURNS: Final = ("month (sine)", "month (cosine)", "weekday (sine)", "weekday (cosine)")
"""The names of what ``turns`` gives."""


def _day(cell: str, order: Order) -> float:
    found = _PATTERNS[order].fullmatch(cell) or _NAMED.fullmatch(cell)
    if found is None and order == "ymd":
        found = _COMPACT.fullmatch(cell)
    if found is None:
        return np.nan
    try:
        month = found["m"] if found["m"].isdecimal() else _month(found["m"].lower())
        return float(date(int(found["y"]), int(month), int(found["d"])).toordinal() - _EPOCH)
    except ValueError:  # the 31st of June
        return np.nan


def _month(word: str) -> int:
    places = [k for k, name in enumerate(_MONTHS, 1) if name.startswith(word)]
    return places[0] if len(places) == 1 else 0
