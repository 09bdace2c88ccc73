"""Flat clipping (Abadi et al., 2016): factor ``min(1, C / n_i)``, sensitivity C."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from plumbline.clipping.base import Clipping


@dataclass(frozen=True)
class Flat(Clipping):
    """Scales every gradient that is longer than ``clip`` down to it."""

    clip: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"clip is {self.clip}; it must be a positive finite number.")

    @property
    def sensitivity(self) -> float:
        return self.clip

    def factors(self, norms: Tensor) -> Tensor:
        return (self.clip / norms.clamp(min=1e-30)).clamp(max=1)
