"""Flat clipping (Abadi et al., 2016): factor ``min(1, C / n_i)``, sensitivity C."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.checks import check_positive
from plumbline.clipping.base import Clipping, clipping

TINY = 1e-30
"""Norms are divided by at least this, so that a zero gradient stays zero."""


@clipping
@dataclass(frozen=True)
class Flat(Clipping):
    """Scales every gradient that is longer than ``clip`` down to it."""

    clip: float

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)

    @property
    def sensitivity(self) -> float:
        return self.clip

    @property
    def threshold(self) -> float:
        return self.clip

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return flat_factors(norms, self.clip)


@clipping
@dataclass(frozen=True)
class Unclipped(Clipping):
    """Leaves every gradient as it is: no bound, and so no guarantee whatever the noise."""

    @property
    def sensitivity(self) -> float:
        return math.inf

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return torch.ones_like(norms)


def flat_factors(norms: Tensor, clip: float | Tensor) -> Tensor:
    """``min(1, clip / n_i)``, ``[B]``."""
    return (clip / norms.clamp(min=TINY)).clamp(max=1)
