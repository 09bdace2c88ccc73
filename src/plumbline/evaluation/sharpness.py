"""Sharpness-aware evaluation: all records at weights moved uphill, by the same offset.

From Sharpness-Aware Training.

``DpSam`` finds the direction with a noisy gradient of the same batch, a second question about it.
``DpSat`` uses the previous step's released gradient instead, which is free, and ``DpSatMomentum``
all of the previous ones (Eq. 15). ``GradientNormPenalty`` is the objective that these approximate
(Bias-Aware Minimisation, Eq. 12 and 15): the loss plus a multiple of the norm of its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from plumbline.checks import check_decay, check_not_negative
from plumbline.evaluation.base import Ask, Asking, Batch, Chunk, Evaluation, Update, evaluation
from plumbline.gradients import PerSampleGradients, combine
from plumbline.mechanism.release import GaussianQuery
from plumbline.spaces import LogBetween

ASCENT = "ascent gradient"
_TINY = 1e-16


@evaluation
@dataclass
class DpSam(Evaluation):
    """At ``theta + radius g / |g|``, g a first noisy gradient of the same batch (Eq. 8, 9).

    Two questions about one batch: the noise must be 1.414 times that of one, for equal epsilon.
    """

    radius: float = 0.05
    _offset: Update = field(default_factory=dict, init=False, repr=False)

    search: ClassVar = {"radius": LogBetween(0.003, 0.5)}
    slot = "weights"
    reads_released = True

    def __post_init__(self) -> None:
        check_not_negative("radius", self.radius)

    @property
    def passes(self) -> int:
        return 2

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        return (GaussianQuery(name=ASCENT, sensitivity=1.0, noise_multiplier=noise_multiplier),)

    def before(self, batch: Batch, ask: Ask) -> Asking:
        uphill = yield from ask(ASCENT)
        self._offset = scaled_to(uphill, self.radius)

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        return chunk.capture(at=self._offset)

    def after(self, batch: Batch, update: Update) -> Update:
        self._offset = {}
        return update


@evaluation
@dataclass
class DpSat(Evaluation):
    """At ``theta + radius g / |g|``, g the previous step's released mean gradient (Alg. 1).

    Attributes:
        radius: How far uphill, rho.
        as_released: Does what the authors' code does: it moves the weights once more for every
            physical chunk, and leaves all but one of these moves in the model. How many there are
            depends on the realised batch, so that there is no guarantee.
    """

    radius: float = 0.05
    as_released: bool = False
    previous: Update = field(default_factory=dict, init=False, repr=False)
    _chunks: int = field(default=0, init=False, repr=False)

    search: ClassVar = {"radius": LogBetween(0.003, 0.5)}
    slot = "weights"
    reads_released = True
    state = ("previous",)
    keeps = "the previous released gradient"

    def __post_init__(self) -> None:
        check_not_negative("radius", self.radius)

    @property
    def unbounded_reason(self) -> str | None:
        if not self.as_released:
            return None
        return (
            "DP-SAT as released leaves one perturbation in the weights for every physical chunk "
            "after the first, which tells the realised batch size without noise"
        )

    @property
    def one_process_reason(self) -> str | None:
        if not self.as_released:
            return None
        return "DP-SAT as released moves the weights by its own count of physical chunks"

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        offset = self._offset()
        if self.as_released:
            self._chunks += 1
            offset = {name: value * self._chunks for name, value in offset.items()}
        return chunk.capture(at=offset)

    def after(self, batch: Batch, update: Update) -> Update:
        if self.as_released and self._chunks > 1:
            with torch.no_grad():
                for name, value in self._offset().items():
                    batch.parameters()[name].add_(value * (self._chunks - 1))
        self._chunks = 0
        self.previous = self._remembered(update)
        return update

    def _offset(self) -> Update:
        return scaled_to(self.previous, self.radius)

    def _remembered(self, update: Update) -> Update:
        return {name: value.clone() for name, value in update.items()}


@evaluation
@dataclass
class DpSatMomentum(DpSat):
    """The same with g the decayed sum of all released gradients (Eq. 13 to 15).

    The paper finds that the radius should be about ten times that of ``DpSat``.
    """

    radius: float = 0.5
    decay: float = 0.9

    search: ClassVar = {"radius": LogBetween(0.03, 5)}
    keeps = "a decayed sum of released gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decay("decay", self.decay)

    def _remembered(self, update: Update) -> Update:
        # Eq. 15 has a further factor of the decay, which its normalisation removes.
        before = self.previous or {name: torch.zeros_like(g) for name, g in update.items()}
        return {name: self.decay * before[name] + g for name, g in update.items()}


@evaluation
@dataclass
class GradientNormPenalty(Evaluation):
    """The gradient of ``loss + penalty |mean gradient|``: ``g_i + penalty H_i g / |g|``.

    g is a first gradient of the same batch, as in ``DpSam``.

    Attributes:
        penalty: How much the norm counts, lambda.
        limit: The most records at once: the Hessian products take memory for each.
    """

    penalty: float = 0.05
    limit: int | None = 32
    _direction: Update = field(default_factory=dict, init=False, repr=False)

    search: ClassVar = {"penalty": LogBetween(0.003, 0.5)}
    slot = "weights"
    reads_released = True

    def __post_init__(self) -> None:
        check_not_negative("penalty", self.penalty)

    @property
    def passes(self) -> int:
        return 3

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        return (GaussianQuery(name=ASCENT, sensitivity=1.0, noise_multiplier=noise_multiplier),)

    def before(self, batch: Batch, ask: Ask) -> Asking:
        uphill = yield from ask(ASCENT)
        self._direction = scaled_to(uphill, 1.0)

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        return combine([chunk.capture(), chunk.hvp(self._direction)], [1.0, self.penalty])

    def after(self, batch: Batch, update: Update) -> Update:
        self._direction = {}
        return update


def scaled_to(direction: Mapping[str, Tensor], length: float) -> Update:
    """``length * direction / |direction|``, one norm over all parameters."""
    if not direction:
        return {}
    norm = torch.stack([value.double().square().sum() for value in direction.values()]).sum().sqrt()
    scale = length / (float(norm) + _TINY)
    return {name: value * scale for name, value in direction.items()}
