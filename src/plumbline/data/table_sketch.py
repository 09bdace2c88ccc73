r"""Recognising the rows of a table in another file, from a few keyed digests of them.

A row's digest is a keyed hash of its cells, as their columns are sorted by name. It is the same
whatever the order of rows and columns, the kind of file, how a number is written, and whether a
column is called "Date of birth" or DATE_OF_BIRTH. Only rows
that no other row of the table equals are kept, and of these the ones with the smallest digests, so
that two sketches have kept the same rows of what two tables share.

What chance does: for two tables of independent rows, of whatever populations, the expected number
of rows that are single in both is at most 2 sqrt(E D E D'), D being the number of values that
exactly two rows of a table have. (With v occurring Poisson(a) and Poisson(b) times, it is the sum
of a exp(-a) b exp(-b), and E D that of a^2 exp(-a) / 2: Cauchy and Schwarz.) So common rows, which
make many pairs, are no match. Tables are the same if they share clearly more than that.

PRIVATE: whoever has the key can test guesses of a row. A sketch is kept as the data are, and is
never in what a run leaves behind.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plumbline.data.table_files import Table

KEPT = 4096
"""The most digests of one sketch."""
_ALL = 2**64 - 1
_SHARED = 0.05  # of the smaller table: what is less is not the same table
_UNNAMED = "unnamed:"  # how pandas calls a column that has no name, since it numbers the rows
_GAPS = {"", "na", "n/a", "nan", "null", "none", "nat", "<na>", "?"}
_WORDS = re.compile(r"[^\W_]+")
_MIDNIGHT = re.compile(r"^(\d{4}-\d\d-\d\d)[ t]00:00:00$")
_MEMO = 1 << 16  # cells of a column that are remembered


@dataclass(frozen=True, eq=False)
class Sketch:
    """What a table is recognised by.

    Attributes:
        columns: Its columns, or those that were looked at, as ``named_columns`` calls them.
        whole: A digest of all rows, in whatever order.
        pairs: How many values exactly two rows have.
        bound: All single rows with digests up to here are kept.
        digests: Of single rows, ascending, ``[n]``.
    """

    columns: tuple[str, ...]
    whole: str
    pairs: int
    bound: int
    digests: npt.NDArray[np.uint64]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "columns": list(self.columns),
            "whole": self.whole,
            "pairs": self.pairs,
            "bound": self.bound,
            "digests": self.digests.astype(">u8").tobytes().hex(),
        }

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Sketch:
        """The inverse; KeyError, TypeError or ValueError if it is none."""
        digests = np.frombuffer(bytes.fromhex(stored["digests"]), ">u8").astype(np.uint64)
        columns = tuple(map(str, stored["columns"]))
        pairs, bound = int(stored["pairs"]), int(stored["bound"])
        return cls(columns, str(stored["whole"]), pairs, bound, digests)

    def with_rows(self, other: Sketch) -> Sketch:
        """The sketch of all rows that either has; ``whole`` is the other's."""
        bound = min(self.bound, other.bound)
        digests = np.union1d(self.digests, other.digests)
        digests, bound = _smallest(digests[digests <= bound], bound)
        return Sketch(self.columns, other.whole, max(self.pairs, other.pairs), bound, digests)


@dataclass(frozen=True)
class Overlap:
    """What two tables share, of the rows that both sketches have kept.

    Attributes:
        common: Single rows of both.
        known: Single rows of the first.
        new: Single rows of the second.
        needed: How many common ones are clearly more than chance explains, and enough to matter.
    """

    common: int
    known: int
    new: int
    needed: float

    @property
    def same(self) -> bool:
        """Whether they are the same people, as far as rows tell."""
        return self.common >= self.needed

    @property
    def telling(self) -> bool:
        """Whether the rows could tell: too few, or too common ones cannot."""
        return min(self.known, self.new) >= self.needed


def overlap(known: Sketch, new: Sketch) -> Overlap:
    """Compares two sketches of the same columns, made with the same key."""
    bound = min(known.bound, new.bound)
    one, other = (own.digests[own.digests <= bound] for own in (known, new))
    common = len(np.intersect1d(one, other, assume_unique=True))
    chance = 2 * math.sqrt(_at_most(known.pairs) * _at_most(new.pairs)) * (bound / _ALL)
    needed = max(_at_most(chance), _SHARED * min(len(one), len(other)))
    return Overlap(common, len(one), len(other), needed)


def sketches(table: Table, key: bytes, columns: Sequence[Iterable[str]]) -> list[Sketch]:
    """The sketches of a table's rows, on each of several sets of its columns, in one reading.

    Args:
        table: The table.
        key: Of the digests; without it they say nothing.
        columns: The sets, of names as ``named_columns`` has them.

    Raises:
        DataError: If the table cannot be read.
    """
    sets = [tuple(sorted(names)) for names in columns]
    read, own = {name: _Cells() for names in sets for name in names}, named_columns(table)
    found = [bytearray() for _ in sets]
    for chunk in table.chunks():
        cells = {name: one.read(chunk.columns[own[name]]) for name, one in read.items()}
        for names, digests in zip(sets, found, strict=True):
            for row in zip(*(cells[name] for name in names), strict=True):
                digests += hashlib.blake2b(
                    "\x1f".join(row).encode(), digest_size=8, key=key
                ).digest()
    return [_sketch(names, bytes(own), key) for names, own in zip(sets, found, strict=True)]


def named_columns(table: Table) -> dict[str, str]:
    """The columns of a table that hold something, by their words in lower case.

    Not those in which a program numbers the rows. Columns that differ in more than letters and
    digits only keep their names.
    """
    there = [name for name in table.names if name and not name.casefold().startswith(_UNNAMED)]
    plain = {name: "_".join(_WORDS.findall(name.casefold())) for name in there}
    times = Counter(plain.values())
    return {words if words and times[words] == 1 else name: name for name, words in plain.items()}


def keyed(key: bytes, text: str) -> str:
    """A digest of a text that without the key says nothing about it."""
    return hashlib.blake2b(text.encode(), digest_size=16, key=key).hexdigest()


def _sketch(columns: tuple[str, ...], digests: bytes, key: bytes) -> Sketch:
    values, times = np.unique(np.frombuffer(digests, ">u8").astype(np.uint64), return_counts=True)
    content = np.repeat(values, times).tobytes()
    whole = hashlib.blake2b(content, digest_size=16, key=key).hexdigest()
    singles, bound = _smallest(values[times == 1], _ALL)
    return Sketch(columns, whole, int((times == 2).sum()), bound, singles)


def _smallest(digests: npt.NDArray[np.uint64], bound: int) -> tuple[npt.NDArray[np.uint64], int]:
    """As many of the smallest as are kept, and up to where they are all."""
    if len(digests) <= KEPT:
        return digests, bound
    return digests[:KEPT], int(digests[KEPT - 1])


def _at_most(expected: float) -> float:
    """What a count of this size hardly exceeds, or hardly comes from more than: four deviations."""
    return expected + 4 * math.sqrt(expected) + 4


class _Cells(dict[str, str]):
    """The cells of a column as ``_canonical`` reads them, of which some are remembered."""

    def __missing__(self, cell: str) -> str:
        found = self[cell] = _canonical(cell)
        return found

    def read(self, cells: Sequence[str]) -> list[str]:
        if len(self) > _MEMO:
            self.clear()
        return list(map(self.__getitem__, cells))


def _canonical(cell: str) -> str:
    """A cell as it is in every file: csv has 1.50, True and 2021-04-03 where parquet has others."""
    text = cell.strip().casefold()
    if text in _GAPS:
        return ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text:
        return _MIDNIGHT.sub(r"\1", text)
    if value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    digits = text.removeprefix("-")
    return text if digits.isdecimal() else repr(value)
