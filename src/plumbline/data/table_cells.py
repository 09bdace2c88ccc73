"""The cells of a table as the numbers that a model sees: one function for each kind of column.

Each cell becomes its numbers by itself, from public constants or from what was found before: no
other cell has a say. All that is needed is numpy: ``plumbline export`` copies this file beside a
model, so that rows become the same numbers where Plumbline is not installed.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from plumbline.data.table_dates import Order, days_of, turns

Numbers = npt.NDArray[np.float64]
Features = tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]
"""The cells as numbers, ``[R, features]``, and which of them are missing, ``[R]``."""

Reader = Callable[[Sequence[str]], Numbers]
"""From cells to numbers, ``[R]``, with NaN for what is none."""


def encode(
    columns: Sequence[Mapping[str, Any]],
    cells: Mapping[str, Sequence[str]],
    gaps: set[str],
    *,
    flagged: bool,
) -> npt.NDArray[np.float32]:
    """Rows as a model sees them, ``[R, features]``; what is missing is filled.

    Args:
        columns: What is known of each column, as in an encoding's file: its name, its kind and
            what its kind needs.
        cells: The rows' cells by column, as text.
        gaps: What a missing cell says.
        flagged: Whether each column has a feature that says whether its cell is missing.
    """
    parts = []
    for one in columns:
        x, gone = features_of(one, cells[one["name"]], gaps)
        parts += [x, gone[:, None].astype(np.float32)] if flagged else [x]
    return np.concatenate(parts, 1)


def features_of(column: Mapping[str, Any], cells: Sequence[str], gaps: set[str]) -> Features:
    """The cells of one column as numbers, and which of them are missing."""
    known = {name: value for name, value in column.items() if name not in ("name", "kind")}
    return _FEATURES[column["kind"]](cells, gaps, **known)


def number_features(
    cells: Sequence[str], gaps: set[str], low: float, high: float, fill: float
) -> Features:
    """Numbers in [-1, 1], ``[R, 1]``; what is missing, or no number, is filled."""
    x, _, gone = _placed(numbers_of(cells), cells, gaps, (low, high), fill)
    return x, gone


def date_features(
    cells: Sequence[str], gaps: set[str], low: float, high: float, fill: float, order: Order
) -> Features:
    """The day, and where in year and week it lies, ``[R, 5]``; without a date, neither is known."""
    x, days, gone = _placed(days_of(cells, order), cells, gaps, (low, high), fill)
    turned = np.where(gone[:, None], 0.0, turns(days)).astype(np.float32)
    return np.concatenate([x, turned], 1), gone


def category_features(
    cells: Sequence[str],
    gaps: set[str],
    categories: Sequence[str],
    prefix: int | None,
    fill: str | None,
) -> Features:
    """A feature for each category, and one for all other cells; a missing one is the fill."""
    gone, known = missing_in(cells, gaps), cut(cells, prefix)
    if gone.any():
        known = [fill or "" if gap else cell for cell, gap in zip(known, gone, strict=True)]
    return _one_hot(places_of(known, categories), len(categories) + 1), gone


def hash_features(cells: Sequence[str], gaps: set[str], bins: int, prefix: int | None) -> Features:
    """A feature for each bin of a public hash; a missing cell has none of them."""
    gone, known = missing_in(cells, gaps), cut(cells, prefix)
    places = {cell: hash_of(cell) % bins for cell in set(known)}
    x = _one_hot(np.array([places[cell] for cell in known], np.int64), bins)
    x[gone] = 0.0
    return x, gone


def text_features(cells: Sequence[str], gaps: set[str], bins: int) -> Features:
    """Words as +1 or -1 in the bin of their public hash, at norm 1; a missing cell has no words."""
    gone, known = missing_in(cells, gaps), _Hashes()
    words = [() if gap else set(tokens(c)) for c, gap in zip(cells, gone, strict=True)]
    hashes = [known[word] for own in words for word in own]
    places, signs = bins_of(np.array(hashes, np.uint64), bins)
    rows = np.repeat(np.arange(len(cells)), [len(own) for own in words])
    x = np.bincount(rows * bins + places, signs, len(cells) * bins).reshape(len(cells), bins)
    norms = np.sqrt((x * x).sum(1, keepdims=True))
    return (x / np.where(norms > 0, norms, 1.0)).astype(np.float32), gone


_FEATURES: dict[str, Callable[..., Features]] = {
    "number": number_features,
    "date": date_features,
    "category": category_features,
    "hash": hash_features,
    "text": text_features,
}


def places_of(cells: Sequence[str], categories: Sequence[str]) -> npt.NDArray[np.int64]:
    """The place of each cell among the categories, ``[R]``; of any other cell, the one after.

    "1.0" is "1" if that alone is a category, and "True" is "true": a program that has read the
    cells as numbers or truth values may spell them so.
    """
    known = {value: place for place, value in enumerate(categories)}
    # Looked up among the categories alone: which other cells there are must not matter.
    places = {
        cell: next((known[one] for one in (cell, *_spellings(cell)) if one in known), len(known))
        for cell in set(cells)
    }
    return np.array([places[cell] for cell in cells], np.int64)


def _spellings(cell: str) -> tuple[str, ...]:
    if cell.lower() in ("true", "false"):
        return cell.lower(), cell.upper(), cell.title()
    return (cell[:-2],) if cell.endswith(".0") else (f"{cell}.0",)


def numbers_of(cells: Sequence[str]) -> Numbers:
    """The cells as numbers, ``[R]``; NaN where a cell is no finite number."""
    try:
        numbers = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        numbers = np.array([_number(cell) for cell in cells], np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def missing_in(
    cells: Sequence[str], gaps: set[str], read: Reader | None = None
) -> npt.NDArray[np.bool_]:
    """Which cells are missing, or cannot be read."""
    gone = np.isnan(read(cells)) if read is not None else np.zeros(len(cells), bool)
    if not gaps.isdisjoint(cells):
        gone |= np.fromiter((cell in gaps for cell in cells), bool, len(cells))
    return gone


def cut(cells: Sequence[str], prefix: int | None) -> Sequence[str]:
    """The first characters of each cell."""
    return cells if prefix is None else [cell[:prefix].rstrip() for cell in cells]


def unit_range(numbers: Numbers, ends: tuple[float, float]) -> npt.NDArray[np.float32]:
    """Maps the range ``ends`` to [-1, 1]; numbers outside go to the nearer end."""
    low, high = ends
    middle, half = (low + high) / 2, (high - low) / 2 or 1.0  # if all are equal: zero
    return ((np.clip(numbers, low, high) - middle) / half).astype(np.float32)


def _placed(
    numbers: Numbers, cells: Sequence[str], gaps: set[str], ends: tuple[float, float], fill: float
) -> tuple[npt.NDArray[np.float32], Numbers, npt.NDArray[np.bool_]]:
    """Numbers in [-1, 1], ``[R, 1]``, and as they are, filled; and which are missing."""
    gone = np.isnan(numbers) | missing_in(cells, gaps)
    numbers = np.where(gone, fill, numbers)
    return unit_range(numbers, ends)[:, None], numbers, gone


def _one_hot(places: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.float32]:
    x = np.zeros((len(places), width), np.float32)
    x[np.arange(len(places)), places] = 1.0
    return x


# Words and codes

_WORD = re.compile(r"\w+(?:'\w+)*")
_BREAK = re.compile(r"<br\s*/?>")
_BELOW_SIGN = np.uint64(2**63 - 1)


def tokens(text: str) -> list[str]:
    """The words of a text, in order: lower case, without punctuation and html line breaks."""
    return _WORD.findall(_BREAK.sub(" ", text.lower()))


def hash_of(word: str) -> int:
    """64 bits that are the same on every machine and in every run."""
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


class _Hashes(dict[str, int]):
    """The hash of each word, computed once."""

    def __missing__(self, word: str) -> int:
        self[word] = found = hash_of(word)
        return found


def bins_of(hashes: npt.NDArray[np.uint64], bins: int) -> tuple[npt.NDArray[np.int64], Numbers]:
    """The bin and the sign of each hash: one bit says the sign, the others the bin."""
    places = ((hashes & _BELOW_SIGN) % np.uint64(bins)).astype(np.int64)
    return places, np.where(hashes > _BELOW_SIGN, -1.0, 1.0)


# From files and programs to text

_EXACT = 2**53  # below it, floats are the whole numbers that they were
_COMMA_NUMBER = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+)?(,\d+)?(?:[eE][+-]?\d+)?")


def texts_of(
    column: Mapping[str, Any], cells: Sequence[Any], *, decimal: str, missing: Sequence[str]
) -> list[str]:
    """The cells of a data frame or of JSON as the csv file says them that was learned from.

    Args:
        column: What is known of their column, as of ``encode``.
        cells: Text, numbers, truth values, dates, and what stands for a missing one.
        decimal: What stands before the decimals of a number in that file.
        missing: What a missing cell says there.
    """
    order, gap = column.get("order", "ymd"), next(iter(missing), "")
    found = [as_text(cell, order) for cell in cells]
    found = [gap if cell == "" else cell for cell in found]
    if decimal != ",":
        return found
    return [
        with_points([text])[0] if isinstance(cell, str) else text
        for cell, text in zip(cells, found, strict=True)
    ]


def as_text(cell: Any, order: Order = "ymd") -> str:
    """A cell of a data frame, or a value of JSON, as text; a missing one is empty.

    A whole number has no decimals. In pandas one missing cell makes a column of whole numbers one
    of floats: the names of its categories would tell of that cell.

    Args:
        cell: The cell.
        order: In which a date is written.
    """
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, datetime.date) and cell == cell:  # which pandas' missing date is not
        written = {"y": f"{cell.year:04}", "m": f"{cell.month:02}", "d": f"{cell.day:02}"}
        return "-".join(written[part] for part in order)
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        cell = int(cell) if abs(float(cell)) < _EXACT else cell
    words = str(cell)
    return "" if words in ("None", "nan", "NaT", "<NA>") else words


def with_points(cells: Sequence[str]) -> list[str]:
    """Numbers with a decimal comma as numbers with a point; other cells as they are."""
    return [
        cell.replace(".", "").replace(",", ".")
        if ("," in cell or "." in cell) and _COMMA_NUMBER.fullmatch(cell)
        else cell
        for cell in cells
    ]


def separator_of(header: str) -> str:
    """A comma; where the header has none, what else it has: a table has two columns at least."""
    first = next(csv.reader([header]), [])
    return ([mark for mark in ";\t|" if len(first) == 1 and mark in header] or [","])[0]
