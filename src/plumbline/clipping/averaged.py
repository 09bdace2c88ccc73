"""Clipping of averages over small groups of records.

From Clipping Bias Reduction, section 3.3 and Fig. 8.

Each record of a batch draws one of ``round(L / p)`` buckets, by itself; a bucket's gradients are
added, divided by p, and clipped. One record touches one bucket and can at most turn its clipped
average around: sensitivity 2C. (Cutting the realised batch into groups of p is not safe: one record
more shifts all later groups.) In ``GroupBatchNorm`` a bucket also goes through BatchNorm together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from plumbline.checks import check_count, check_positive
from plumbline.clipping.base import Clipping, clipping
from plumbline.clipping.flat import flat_factors
from plumbline.spaces import OneOf


@clipping
@dataclass(frozen=True)
class Averaged(Clipping):
    """Clips the average of about ``size`` records. Sensitivity ``2 clip``.

    Attributes:
        clip: The bound C on a bucket's average.
        size: How many records share a bucket on average, p.
    """

    clip: float = 1.0
    size: int = 4

    search: ClassVar = {"size": OneOf((2, 4, 8, 16))}

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_count("size", self.size)

    @property
    def sensitivity(self) -> float:
        return 2 * self.clip

    @property
    def threshold(self) -> float:
        return self.clip

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        # The records of a bucket come added up: dividing by p is part of the factor.
        return flat_factors(norms / self.size, self.clip) / self.size

    def normaliser(self, expected_size: int) -> float:
        return expected_size / self.size

    def buckets(self, expected_size: int) -> int:
        return max(1, round(expected_size / self.size))


@clipping
@dataclass(frozen=True)
class GroupBatchNorm(Averaged):
    """The same, with BatchNorm's statistics taken over the records of a bucket."""

    together = True
