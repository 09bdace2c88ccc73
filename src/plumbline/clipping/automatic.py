"""Clipping without a threshold: every gradient is scaled, long or short.

``Normalised`` is Clipping Bias Reduction, Eq. 8: the factor is ``1 / n_i``. ``Automatic`` is AUTO-S
of Bu et al. (2022), its stable form: ``C / (n_i + 0.01)``, which lets short gradients stay short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from plumbline.checks import check_positive
from plumbline.clipping.base import Clipping, Gradients, clipping
from plumbline.results import Undefined
from plumbline.spaces import LogBetween

_SHORTEST = 1e-12


@clipping
@dataclass(frozen=True)
class Normalised(Clipping):
    """Gives every gradient norm one; a zero gradient stays zero. Sensitivity 1."""

    @property
    def sensitivity(self) -> float:
        return 1.0

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return 1 / norms.clamp(min=_SHORTEST)

    def is_clipped(
        self, gradients: Gradients, norms: Tensor, groups: Tensor | None = None
    ) -> Undefined:
        return Undefined("every record is scaled to length one")


@clipping
@dataclass(frozen=True)
class Automatic(Clipping):
    """Gives every gradient a norm just below ``clip``, short ones less. Sensitivity ``clip``."""

    clip: float = 1.0
    stability: float = 0.01

    search: ClassVar = {"stability": LogBetween(0.001, 1)}

    def __post_init__(self) -> None:
        check_positive("clip", self.clip)
        check_positive("stability", self.stability)

    @property
    def sensitivity(self) -> float:
        return self.clip

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return self.clip / (norms + self.stability)
