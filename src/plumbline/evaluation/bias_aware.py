"""Bias-aware minimisation: every record at its own weights, moved up its own gradient.

From Bias-Aware Minimisation.

Minimising ``loss_i + radius |g_i|`` shortens the gradients that clipping would bend. ``Bam`` is the
ascent form (Eq. 14), ``BamExact`` the Hessian-vector form (Eq. 13) that it approximates. Each
record starts from the same weights: Alg. 2, line 4, read literally, would add up one record's
perturbation on another's, and break the sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from plumbline.checks import check_not_negative
from plumbline.evaluation.base import Chunk, Evaluation, evaluation
from plumbline.gradients import PerSampleGradients, Perturbation, combine
from plumbline.spaces import LogBetween

Radius = float | Callable[[int], float]
"""A number, or a schedule: the radius by the number of the step."""


@evaluation
@dataclass
class Bam(Evaluation):
    """At ``theta + radius g_i / |g_i|``; a record whose gradient is zero stays at theta."""

    radius: Radius = 0.02

    search: ClassVar = {"radius": LogBetween(0.001, 0.2)}
    slot = "weights"

    def __post_init__(self) -> None:
        if not callable(self.radius):
            check_not_negative("radius", self.radius)

    @property
    def passes(self) -> int:
        return 2

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        own = chunk.capture()
        scale = _inverse(own.norms()) * radius_at(self.radius, chunk.step)
        return chunk.capture(at=Perturbation(own, scale))


@evaluation
@dataclass
class BamExact(Bam):
    """``g_i + radius H_i g_i / |g_i|``.

    Attributes:
        limit: The most records at once: the Hessian products take memory for each.
    """

    limit: int | None = 32

    @property
    def passes(self) -> int:
        return 3

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        own = chunk.capture()
        scale = _inverse(own.norms()) * radius_at(self.radius, chunk.step)
        products = chunk.hvp(own.materialise())  # after the norms: cancelled sums are exact then
        return combine([own, products], [1.0, scale])


def radius_at(radius: Radius, step: int) -> float:
    """The radius of a step."""
    if not callable(radius):
        return float(radius)
    value = float(radius(step))
    check_not_negative(f"the radius of step {step}", value)
    return value


def _inverse(norms: Tensor) -> Tensor:
    """``1 / n_i``, and zero where the gradient is zero or not finite."""
    usable = torch.isfinite(norms) & (norms > 0)
    return torch.where(usable, 1 / norms.clamp(min=torch.finfo(norms.dtype).tiny), 0)
