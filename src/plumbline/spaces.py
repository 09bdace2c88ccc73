"""Where a method's settings are searched: each space maps the unit interval onto its values.

A method declares the spaces of its own knobs where it is registered. Whoever searches needs only
numbers in [0, 1): a random one for a random candidate, a sampler's for a guided search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class Space(Protocol):
    """Values that a setting may have."""

    def at(self, place: float) -> Any:
        """The value at a place in [0, 1)."""


@dataclass(frozen=True)
class Between:
    """Numbers from ``low`` to ``high``, evenly."""

    low: float
    high: float

    def at(self, place: float) -> float:
        return self.low + place * (self.high - self.low)


@dataclass(frozen=True)
class LogBetween:
    """Positive numbers from ``low`` to ``high``, evenly in their logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high:
            raise ValueError(
                f"The space is from {self.low} to {self.high}; give two positive numbers, the "
                "smaller one first."
            )

    def at(self, place: float) -> float:
        return float(self.low * (self.high / self.low) ** place)


@dataclass(frozen=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    def at(self, place: float) -> Any:
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]
