"""Pre-clipping perturbation: clip ``g_i + scale * zeta_i``, zeta_i Gaussian.

From Geometric Perspective, Eq. 11.

Noise of each record's own makes the gradients' distribution more symmetric, on which clipping is
less biased. It earns no privacy: the noise that counts is still added to the clipped sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plumbline.checks import check_not_negative
from plumbline.evaluation.base import Chunk, Evaluation, evaluation
from plumbline.gradients import PerSampleGradients, jitter
from plumbline.spaces import LogBetween


@evaluation
@dataclass
class PreClipNoise(Evaluation):
    """Adds Gaussian noise of standard deviation ``scale`` to each record's gradient, anew."""

    scale: float = 5.0

    search: ClassVar = {"scale": LogBetween(0.1, 10)}
    slot = "gradient"

    def __post_init__(self) -> None:
        check_not_negative("scale", self.scale)

    def change(self, chunk: Chunk, gradients: PerSampleGradients) -> PerSampleGradients:
        gradients.norms()  # sums that cancel are computed again, exactly
        return jitter(gradients, self.scale, chunk.draws("pre-clipping", of="units").seeds())
