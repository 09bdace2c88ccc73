"""A clipping, one that lies about its sensitivity, and a rule of evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.clipping import Clipping, clipping
from plumbline.evaluation import Chunk, Evaluation, evaluation
from plumbline.gradients import PerSampleGradients, combine
from plumbline.spaces import LogBetween


@clipping
@dataclass(frozen=True)
class Soft(Clipping):
    """Factor ``C / sqrt(C^2 + n_i^2)``: no corner at C. Sensitivity C."""

    clip: float = 1.0

    search = {"clip": LogBetween(0.1, 2)}  # noqa: RUF012

    @property
    def sensitivity(self) -> float:
        return self.clip

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return self.clip / torch.hypot(norms, torch.full_like(norms, self.clip))


@clipping
@dataclass(frozen=True)
class SoftLiar(Soft):
    """The same, half as long again as it declares."""

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return 1.5 * super().factors(norms, groups)


@evaluation
@dataclass
class Halved(Evaluation):
    """Half of each record's gradient."""

    share: float = 0.5

    slot = "gradient"

    def change(self, chunk: Chunk, gradients: PerSampleGradients) -> PerSampleGradients:
        return combine([gradients], [self.share])


NOT_A_PART = 3.0
