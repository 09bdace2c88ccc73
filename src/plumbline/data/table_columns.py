"""What a column of a table is encoded by: one class for each kind of column, kept in a file.

How its cells become numbers is the function of its kind in ``table_cells``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from plumbline.data.table_cells import (
    Reader,
    cut,
    features_of,
    missing_in,
    numbers_of,
    places_of,
)
from plumbline.data.table_dates import TURNS, Order, days_of, iso
from plumbline.data.table_schema import CATEGORY, DATE, HASH, TEXT
from plumbline.data.table_schema import Column as Known

Encoded = tuple[Tensor, npt.NDArray[np.bool_]]
"""The cells as numbers, ``[R, features]``, and which of them are missing, ``[R]``."""


class Encodes:
    """A column that encodes its cells."""

    def encode(self, cells: Sequence[str], gaps: set[str]) -> Encoded:
        """The cells as numbers; what is missing is filled, and said."""
        x, gone = features_of(vars(self), cells, gaps)
        return torch.from_numpy(x), gone


@dataclass(frozen=True)
class RangedColumn(Encodes, ABC):
    """A column of numbers or dates, within a range.

    Attributes:
        name: The column.
        low: What becomes -1, and all below it.
        high: What becomes 1, and all above it.
        fill: What a missing number is taken to be, where missing ones are filled.
    """

    name: str
    low: float
    high: float
    fill: float

    def __post_init__(self) -> None:
        ends = self.low, self.high
        if not (-math.inf < self.low <= self.high < math.inf and math.isfinite(self.fill)):
            raise ValueError(f"The range of '{self.name}' is {ends}.")

    @property
    @abstractmethod
    def read(self) -> Reader:
        """From cells to numbers."""

    def unseen(self, cells: Sequence[str], gaps: set[str]) -> int:
        """How many cells are treated as another: those outside the range."""
        found = np.where(missing_in(cells, gaps), np.nan, self.read(cells))
        return int(((found < self.low) | (found > self.high)).sum())


@dataclass(frozen=True)
class Numeric(RangedColumn):
    """A column of numbers, which becomes one feature."""

    kind: Literal["number"] = "number"

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return (self.name,)

    @property
    def read(self) -> Reader:
        """From cells to numbers."""
        return numbers_of

    def said_of(self, cells: str) -> str:
        """What is done with such cells, in words."""
        return f"{cells} a number outside {self.low:g} to {self.high:g}; it is taken as the {_END}"


@dataclass(frozen=True)
class Dated(RangedColumn):
    """A column of dates, which becomes five features: the day, and where in year and week it lies.

    Its range and fill are in days since 1970-01-01.

    Attributes:
        order: In which day, month and year stand.
    """

    order: Order = "ymd"
    kind: Literal["date"] = "date"

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return (self.name, *(f"{self.name} {turn}" for turn in TURNS))

    @property
    def read(self) -> Reader:
        """From cells to days."""
        return partial(days_of, order=self.order)

    def said_of(self, cells: str) -> str:
        """What is done with such cells, in words."""
        where = f"outside {iso(self.low)} to {iso(self.high)}"
        return f"{cells} a date {where}; its day is taken as the {_END}"


@dataclass(frozen=True)
class Categorical(Encodes):
    """A column of categories, which becomes one feature for each, and one for all other cells.

    Attributes:
        name: The column.
        categories: The categories.
        prefix: How many characters of a cell are looked at; None for all.
        fill: The category of a missing cell; None for none of them.
    """

    name: str
    categories: tuple[str, ...]
    prefix: int | None = None
    fill: str | None = None
    kind: Literal["category"] = "category"

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return (*(f"{self.name}={value}" for value in self.categories), f"{self.name} (other)")

    read = None

    def unseen(self, cells: Sequence[str], gaps: set[str]) -> int:
        """How many cells count as none of the categories."""
        other = places_of(cut(cells, self.prefix), self.categories) == len(self.categories)
        return int((other & ~missing_in(cells, gaps)).sum())

    def said_of(self, cells: str) -> str:
        """What is done with such cells, in words."""
        return f"{cells} a category that the model does not know; it counts as another."


@dataclass(frozen=True)
class InBins(Encodes):
    """A column that is hashed, to which no cell is new.

    Attributes:
        name: The column.
        bins: How many features.
    """

    name: str
    bins: int

    read = None

    def unseen(self, cells: Sequence[str], gaps: set[str]) -> int:
        """How many cells are treated as another: none."""
        return 0

    def said_of(self, cells: str) -> str:
        """What is done with such cells, in words: there are none."""
        return cells


@dataclass(frozen=True)
class Hashed(InBins):
    """A column of codes, each of which a public hash gives one of some features.

    Attributes:
        prefix: How many characters of a cell are looked at; None for all.
    """

    prefix: int | None = None
    kind: Literal["hash"] = "hash"

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return tuple(f"{self.name} (hash {place})" for place in range(self.bins))


@dataclass(frozen=True)
class Worded(InBins):
    """A column of text, whose words are hashed (``data.hashing``); each text has norm 1."""

    kind: Literal["text"] = "text"

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return tuple(f"{self.name} (words {place})" for place in range(self.bins))


Column = Annotated[
    Numeric | Dated | Categorical | Hashed | Worded,
    Field(discriminator="kind"),
]
_END = "nearer end."


def encoder_of(name: str, known: Known) -> Numeric | Dated | Categorical | Hashed | Worded:
    """How a column is encoded of which enough is known."""
    fill = known.fill
    if known.range is not None:
        low, high = known.range
        middle = (low + high) / 2 if fill is None else float(fill)
        return (
            Dated(name, low, high, middle, known.order)
            if known.kind == DATE
            else Numeric(name, low, high, middle)
        )
    if known.bins is not None:
        assert known.kind in (HASH, TEXT)
        return (
            Worded(name, known.bins)
            if known.kind == TEXT
            else Hashed(name, known.bins, known.prefix)
        )
    assert known.kind in (CATEGORY, None)
    return Categorical(
        name, known.categories or (), known.prefix, fill if isinstance(fill, str) else None
    )
