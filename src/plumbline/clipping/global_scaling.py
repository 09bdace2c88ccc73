"""Global scaling: one factor for almost all records keeps the direction.

From Gradient Misalignment, Alg. 2.

Records within a bound Z are scaled by ``C / Z``, all alike. Those beyond it are dropped by
``Global`` (Bu et al., 2021) and clipped to C by ``GlobalAdapt``, whose Z follows the norms: its
fixed point is ``P(n > tau Z) = eta_Z``, so Z tracks a quantile and is not an upper bound. The paper
divides the count by the realised batch size; we divide by the expected one, which is public.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from plumbline.checks import check_not_negative, check_positive
from plumbline.clipping.base import Clipping, RecordNorms, clipping
from plumbline.clipping.quantile import count, count_query, declared_count, moved
from plumbline.mechanism.release import GaussianQuery, Program
from plumbline.spaces import LogBetween

_NAME = "norms beyond the bound"


@clipping
@dataclass(frozen=True)
class Global(Clipping):
    """Factor ``C / Z`` for records within Z, zero for the others. Sensitivity C.

    Attributes:
        clip: What is left of a gradient of norm ``bound``, C.
        bound: Z, at least ``clip``.
    """

    clip: float = 1.0
    bound: float = 50.0

    search: ClassVar = {"bound": LogBetween(1, 100)}

    def __post_init__(self) -> None:
        _check(self.clip, self.bound)

    @property
    def sensitivity(self) -> float:
        return self.clip

    @property
    def threshold(self) -> float:
        return self.bound

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return (norms <= self.bound).to(norms) * (self.clip / self.bound)


@clipping
@dataclass
class GlobalAdapt(Clipping):
    """Factor ``C / Z`` for records within Z, ``C / n_i`` for the others. Sensitivity C.

    After a step ``Z <- max(C, Z exp(-rate + b / L))``, with b a noisy count of the records whose
    norm is above ``tolerance * Z``. At Z = C this is flat clipping.

    Attributes:
        clip: C.
        initial: The first Z.
        rate: How fast Z shrinks when no record lies beyond it, eta_Z.
        tolerance: At which part of Z a record counts as beyond it, tau.
        count_noise: The standard deviation of the count's noise, in records, sigma_b.
    """

    clip: float = 1.0
    initial: float = 50.0
    rate: float = 0.1
    tolerance: float = 1.0
    count_noise: float = 10.0
    bound: float = field(init=False)

    search: ClassVar = {"initial": LogBetween(1, 100), "rate": LogBetween(0.03, 0.5)}
    state = ("bound",)
    keeps = "the bound Z"
    constant = True  # Z changes and the clip bound does not

    def __post_init__(self) -> None:
        _check(self.clip, self.initial)
        check_positive("rate", self.rate)
        check_positive("count_noise", self.count_noise)
        check_not_negative("tolerance", self.tolerance)
        self.bound = self.initial

    @property
    def sensitivity(self) -> float:
        return self.clip

    @property
    def threshold(self) -> float:
        return self.bound

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return self.clip / torch.clamp(norms, min=self.bound)

    def after(self, records: RecordNorms) -> Program[None]:
        beyond = count(records.norms > self.tolerance * self.bound)
        noisy = yield count_query(_NAME, beyond, self.count_noise, records.noise_multiplier)
        share = float(noisy["value"]) / records.expected_size
        self.bound = max(self.clip, moved(self.bound, -self.rate + share))

    def queries_after(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        return (declared_count(_NAME, self.count_noise, noise_multiplier),)


def _check(clip: float, bound: float) -> None:
    check_positive("clip", clip)
    check_positive("the bound", bound)
    if bound < clip:
        raise ValueError(
            f"The bound Z is {bound} and clip is {clip}; Z must be at least clip, else records "
            "would be scaled up beyond the sensitivity."
        )
