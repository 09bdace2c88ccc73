"""A clip bound that follows a private quantile of the norms (Andrew et al., 2021).

Each step asks, beside the gradient, how many norms are within the bound, and moves it towards the
quantile wanted: ``C <- C exp(-rate (b / L - quantile))``. The count has noise of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from plumbline.checks import check_positive
from plumbline.clipping.base import Clipping, RecordNorms, clipping
from plumbline.clipping.flat import flat_factors
from plumbline.mechanism.release import GaussianQuery, Program, Query
from plumbline.spaces import Between, LogBetween

_NAME = "norms within the bound"
_SMALLEST, _LARGEST = 1e-12, 1e30
_MOST = 50.0


@clipping
@dataclass
class QuantileAdaptive(Clipping):
    """Flat clipping at a bound that follows a quantile of the norms. Sensitivity: the bound.

    Attributes:
        initial: The first bound.
        quantile: Which share of the records should stay as they are.
        rate: How fast the bound moves.
        count_noise: The standard deviation of the count's noise, in records.
    """

    initial: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 10.0
    bound: float = field(init=False)

    search: ClassVar = {"initial": LogBetween(0.03, 3), "quantile": Between(0.2, 0.95)}
    state = ("bound",)
    keeps = "the bound"

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_positive("rate", self.rate)
        check_positive("count_noise", self.count_noise)
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile is {self.quantile!r}; it must lie between 0 and 1.")
        self.bound = self.initial

    @property
    def sensitivity(self) -> float:
        return self.bound

    @property
    def threshold(self) -> float:
        return self.bound

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return flat_factors(norms, self.bound)

    def after(self, records: RecordNorms) -> Program[None]:
        within = count(records.norms <= self.bound)
        noisy = yield count_query(_NAME, within, self.count_noise, records.noise_multiplier)
        share = float(noisy["value"]) / records.expected_size
        self.bound = moved(self.bound, -self.rate * (share - self.quantile))

    def queries_after(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        return (declared_count(_NAME, self.count_noise, noise_multiplier),)


def moved(bound: float, change: float) -> float:
    """``bound * exp(change)``, within what float32 holds: a noisy count may be any number.

    And above zero: a sensitivity of zero would leave nothing to release.
    """
    return min(max(bound * math.exp(min(change, _MOST)), _SMALLEST), _LARGEST)


def count(hits: Tensor) -> Tensor:
    """How many records there are among ``hits``, ``[N]``, as something to add noise to."""
    return hits.sum().double().cpu()


def count_query(name: str, value: Tensor, noise: float, noise_multiplier: float) -> Query:
    """Asks for counts of which a record can change one, by one; without noise in a run without."""
    asked = declared_count(name, noise, noise_multiplier)
    return Query(value=value, sensitivity=1.0, sigma=asked.noise_multiplier, name=name)


def declared_count(name: str, noise: float, noise_multiplier: float) -> GaussianQuery:
    """The same question without its value."""
    sigma = noise if noise_multiplier else 0.0
    return GaussianQuery(name=name, sensitivity=1.0, noise_multiplier=sigma)
