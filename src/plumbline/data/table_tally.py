"""One column of a table as a look at it sees it: its kind, what is wrong, and what to do.

The rules are of thumb, and only advise. No cell is quoted but words that mean yes, no or missing.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from plumbline.data.numbers import numbers_of
from plumbline.data.table_counts import reader_of
from plumbline.data.table_dates import ORDERS, Order, days_of
from plumbline.data.table_schema import (
    CATEGORY,
    DATE,
    HASH,
    MOST_CATEGORIES,
    MOST_CLASSES,
    MOST_GROUPS,
    NUMBER,
    TEXT,
    Column,
)
from plumbline.data.table_target import in_class_order, is_yes_no

KEPT = 5_000
"""How many different cells of a column are kept."""
BINS, WORD_BINS = 64, 1024
"""How many features are proposed for codes, and for the words of a text."""
_MOSTLY, _ALL_BUT = 0.5, 0.95  # shares of a column's cells
_SOME = 50  # cells that tell whether the others are worth a try as dates
_FEW = 30  # rows of a group that is hard to judge by
_CODES = 20  # the most different whole numbers that may be codes
_WORDS = 3  # of a cell, on average, from which on it is text
_MARKERS = {"na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", "-", "--", ".", "missing"}
_SURELY = {"na", "n/a", "#n/a", "nan", "null", "?"}
_GAP = "--missing-value"
_LEFT_OUT = "Such rows are left out."
_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)?,\d+")
_ID = re.compile(r"(?:^|[_\W])(?:id|ids|uuid|guid|nr|no|number|key|index|ssn|mrn)$|^$|Id$|ID$")


@dataclass(frozen=True)
class ColumnTally:
    """A column as it was seen.

    Attributes:
        name: The column.
        kind: What it was taken for: "number", "category", "yes or no", "date", "code", "text",
            "id", "constant" or "empty".
        missing: How many of its cells are missing.
        different: How many different cells it has; None for more than ``KEPT``.
        most: How many rows have its most frequent cell; None if there are so many cells.
        wrong: What stands in the way; empty if nothing does.
        remark: Whether a run can go on all the same.
        advice: What to do.
        options: The same as options of the command line.
        column: What it would be declared as.
    """

    name: str
    kind: str
    missing: int
    different: int | None
    most: int | None = None
    wrong: str = ""
    remark: bool = False
    advice: str = ""
    options: tuple[tuple[str, str], ...] = ()
    column: Column = field(default_factory=Column)

    def noting(
        self, wrong: str, advice: str, *options: tuple[str, str], remark: bool = False, **more: Any
    ) -> ColumnTally:
        """The same with what is wrong, what to do, and further fields."""
        options, remark = options or self.options, remark or self.remark
        return replace(self, wrong=wrong, advice=advice, options=options, remark=remark, **more)


class Tally:
    """The cells of a column, counted; after ``KEPT`` different ones, only what they amount to."""

    def __init__(self, name: str, known: Column, gaps: set[str]) -> None:
        self.name, self._known, self._gaps = name, known, gaps
        self._read = reader_of(known) or numbers_of
        self._gap_numbers = not np.isnan(self._read(list(gaps))).all()
        self._kept: Counter[str] = Counter()
        self._full = self._numeric = False
        self.missing = self.present = self._odd = 0  # odd: no numbers, in a column of numbers
        self._ends = np.inf, -np.inf

    @property
    def values(self) -> Counter[str] | None:
        """How often each cell occurs; None if there are too many."""
        return None if self._full else self._kept

    def add(self, cells: Sequence[str]) -> None:
        """Counts some cells."""
        if self._full:
            self._add_more(cells)
            return
        self._kept.update(cells)
        gone = sum(self._kept.pop(gap, 0) for gap in self._gaps)
        self.missing += gone
        self.present += len(cells) - gone
        if len(self._kept) > KEPT:
            self._full = True
            self._note_numbers(self._kept)
            self._numeric = self._odd < _MOSTLY * self.present

    def _add_more(self, cells: Sequence[str]) -> None:
        if not self._numeric:
            gone = sum(map(cells.count, self._gaps))
        else:
            numbers = self._read(cells)
            if self._gap_numbers:  # such as -999
                numbers[[cell in self._gaps for cell in cells]] = np.nan
            if len(none := np.flatnonzero(np.isnan(numbers))):
                gone = sum(cells[place] in self._gaps for place in none.tolist())
                self._odd += len(none) - gone
                numbers = np.delete(numbers, none)
            else:
                gone = 0
            if len(numbers):
                low, high = self._ends
                self._ends = min(low, float(numbers.min())), max(high, float(numbers.max()))
        self.missing += gone
        self.present += len(cells) - gone

    def _note_numbers(self, values: Counter[str]) -> None:
        numbers = self._read(list(values))
        there = ~np.isnan(numbers)
        times = np.fromiter(values.values(), np.int64, len(values))
        self._odd = int(times[~there].sum())
        if there.any():
            self._ends = float(numbers[there].min()), float(numbers[there].max())

    def seen(self) -> ColumnTally:
        """What the column was taken for."""
        if not self._full:
            self._note_numbers(self._kept)
            self._numeric = self._odd < _MOSTLY * self.present
        found = ColumnTally(
            self.name,
            "empty",
            self.missing,
            None if self._full else len(self._kept),
            None if self._full else max(self._kept.values(), default=0),
        )
        if self._known.kind is not None:
            return self._declared(replace(found, column=self._known, kind=self._known.kind))
        if not self.present:
            return _dropped(found, "it has no value in any row")
        if len(self._kept) == 1:
            return _dropped(replace(found, kind="constant"), "it has one value only")
        return self._taken(found)

    def _declared(self, found: ColumnTally) -> ColumnTally:
        if self._known.kind in (NUMBER, DATE) and self._odd:
            what = "dates in the order that is declared" if found.kind == DATE else "numbers"
            share = 100 * self._odd / self.present
            wrong = f"{self._odd:,} of its cells ({share:.0f} %) are no {what}"
            if self._odd > (1 - _ALL_BUT) * self.present:
                advice = "Declare what it holds, or mend these cells; they count as missing."
                return found.noting(wrong, advice)
        return found

    def _taken(self, found: ColumnTally) -> ColumnTally:
        name, kept = self.name, self._kept
        if is_yes_no(kept):
            values = in_class_order(kept)
            return replace(
                found,
                kind="yes or no",
                options=(("--categories", f"{name}={','.join(values)}"),),
                column=Column(CATEGORY, categories=values),
            )
        if orders := self._orders():
            return self._dated(found, orders)
        if self._numeric:
            return self._number(found)
        commas = self._share(lambda cell: _COMMA.fullmatch(cell) is not None)
        whole = 1 - self._odd / self.present if not self._full else self._share(str.isdecimal)
        if commas and commas + whole >= _ALL_BUT:
            wrong, option = "its numbers have decimal commas", ("--decimal", ",")
            advice = "Say so: --decimal ,"
            return found.noting(wrong, advice, option, kind="number", column=Column(NUMBER))
        length = sum(len(cell.split()) * times for cell, times in kept.items()) / kept.total()
        unique = len(kept) >= 0.99 * kept.total() and len(kept) >= 20
        many = self._full or len(kept) > MOST_CATEGORIES
        if length >= _WORDS and (many or unique):
            advice = f"Hash its words: --text {name}={WORD_BINS}; or drop it: --drop {name}."
            option, column = ("--text", f"{name}={WORD_BINS}"), Column(TEXT, bins=WORD_BINS)
            return found.noting("it holds free text", advice, option, kind="text", column=column)
        if unique:
            return _dropped(replace(found, kind="id"), "it is different in nearly every row")
        if many:
            return self._coded(found)
        return self._with_markers(replace(found, kind="category", column=Column(CATEGORY)))

    def _orders(self) -> list[Order]:
        """The orders in which nearly all cells are dates."""
        cells, times = list(self._kept), np.array(list(self._kept.values()))
        some = cells[:_SOME]
        return [
            order
            for order in ORDERS
            if (~np.isnan(days_of(some, order))).sum() >= _MOSTLY * len(some)
            and times[~np.isnan(days_of(cells, order))].sum() >= _ALL_BUT * times.sum()
        ]

    def _dated(self, found: ColumnTally, orders: list[Order]) -> ColumnTally:
        order = orders[0]
        said = self.name if order == "ymd" else f"{self.name}={order}"
        advice = f"Say so: --date {said}."
        if orders == ["dmy", "mdy"]:
            advice = f"Say so: --date {said}, or {self.name}=mdy where the month comes first."
        option, column = ("--date", said), Column(DATE, order=order)
        return found.noting("it holds dates", advice, option, kind="date", column=column)

    def _number(self, found: ColumnTally) -> ColumnTally:
        low, high = self._ends
        kept = self._kept
        whole = all(cell.lstrip("+-").isdecimal() for cell in kept)
        unique = len(kept) == kept.total() or (self._full and len(kept) >= 0.99 * kept.total())
        named = high - low < 2 * self.present or _ID.search(self.name)
        if whole and unique and named and len(kept) >= 20:
            return _dropped(replace(found, kind="id"), "it numbers the rows")
        if whole and 2 < len(kept) <= _CODES and high - low >= 2 * len(kept):
            return found.noting(
                "it holds few whole numbers with gaps, as codes do",
                f"If so: --categorical {self.name}.",
                ("--categorical", self.name),
                remark=True,
                kind="category",
                column=Column(CATEGORY),
            )
        found = replace(found, kind="number", column=Column(NUMBER))
        return self._with_markers(found)

    def _coded(self, found: ColumnTally) -> ColumnTally:
        name = self.name
        advice = f"Hash them: --hash {name}={BINS}; or leave the column out: --drop {name}."
        if len({cell[:3] for cell in self._kept}) <= MOST_CATEGORIES:
            advice = (
                f"Hash them: --hash {name}={BINS}; or look at their beginning: --prefix {name}=3."
            )
        option, column = ("--hash", f"{name}={BINS}"), Column(HASH, bins=BINS)
        return found.noting(
            "it has many different values", advice, option, kind="code", column=column
        )

    def _with_markers(self, found: ColumnTally) -> ColumnTally:
        """Notes cells that seem to say that a value is missing, and words among numbers."""
        marks = [cell for cell in self._kept if cell.casefold() in _MARKERS]
        number = found.kind == "number"
        if not number:  # "none" and "-" may well be categories
            marks = [cell for cell in marks if cell.casefold() in _SURELY]
        odd = self._odd if number else 0
        if number and marks:  # of a column with very many values, not all are counted
            odd = 0 if self._full else odd - sum(self._kept[mark] for mark in marks)
        words = f"{odd:,} of its cells {'is no number' if odd == 1 else 'are no numbers'}"
        if marks:
            also = f", and {words}, which counts as missing too" if odd else ""
            return found.noting(
                f"some cells say {' or '.join(marks)}, as if a value were missing{also}",
                f"Say so: {' '.join(f'{_GAP} {shlex.quote(mark)}' for mark in marks)}.",
                *((_GAP, mark) for mark in marks),
            )
        if odd:
            advice = (
                f"{'It counts' if odd == 1 else 'They count'} as missing; if the column holds "
                f"categories, say --categorical {self.name}."
            )
            return found.noting(words, advice, remark=True)
        return found

    def _share(self, holds: Callable[[str], object]) -> float:
        return sum(n for cell, n in self._kept.items() if holds(cell)) / self._kept.total()


def _dropped(found: ColumnTally, wrong: str) -> ColumnTally:
    column = found.column if found.column.kind is not None else Column(CATEGORY)
    advice = f"Leave it out: --drop {found.name}."
    if not found.name:
        wrong, advice = f"{wrong}, and it has no name", "Leave it out: --drop ''."
    return found.noting(wrong, advice, ("--drop", found.name), column=column)


def as_target(found: ColumnTally) -> ColumnTally:
    """The same for the column that is predicted."""
    known = tuple((option, value) for option, value in found.options if option == _GAP)
    plain = replace(
        found, wrong="", advice="", options=known, remark=False, column=Column(CATEGORY)
    )
    different = KEPT + 1 if found.different is None else found.different
    if different < 2:
        return plain.noting("the target has one value only", "There is nothing to learn from it.")
    if different > MOST_CLASSES:
        what, advice = "values", "Predict a column of classes, or group its values first."
        mended = known
        if found.kind == "number":
            what, mended = "numbers", (*known, ("--task", "regression"))
            advice = "Say --task regression to predict the number, or group its values first."
        wrong = f"the target has {_many(found.different)} different {what}, which are no classes"
        return plain.noting(wrong, advice, *mended)
    if found.missing:
        options = found.options if found.kind == "yes or no" else known
        words = f"{_rows(found.missing)} the target"
        return plain.noting(words, _LEFT_OUT, *options, remark=True, column=found.column)
    if found.kind == "yes or no":
        return replace(plain, options=found.options, column=found.column)
    return plain


def as_groups(found: ColumnTally, values: Counter[str] | None) -> ColumnTally:
    """The same for a column of groups."""
    plain = replace(found, wrong="", advice="", remark=False, column=Column(CATEGORY))
    plain = replace(plain, options=found.options if found.kind == "yes or no" else ())
    if values is None or len(values) > MOST_GROUPS:
        words = f"it has {_many(found.different)} groups, and at most {MOST_GROUPS} are reported"
        return plain.noting(words, "Group its values first.")
    if found.missing:
        return plain.noting(f"{_rows(found.missing)} the group", _LEFT_OUT, remark=True)
    small = [rows for rows in values.values() if rows < _FEW]
    if small:
        have = "has" if len(small) == 1 else "have"
        words = f"{len(small)} of its groups {have} fewer than {_FEW} rows"
        advice = "Too few to judge by: put small groups together."
        return plain.noting(f"{words} (the smallest {min(small)})", advice, remark=True)
    return plain


def _rows(count: int) -> str:
    return "1 row lacks" if count == 1 else f"{count:,} rows lack"


def _many(count: int | None) -> str:
    return f"more than {KEPT:,}" if count is None else f"{count:,}"
