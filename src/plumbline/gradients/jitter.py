"""Per-record gradients, each with its own Gaussian noise: ``g_i + scale * zeta_i``.

For pre-clipping perturbation (Geometric Perspective, Eq. 11). A record's ``zeta_i`` is a function
of its seed, so it is drawn again when needed, a few records at a time, and never stored for the
whole batch.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

from plumbline.gradients.compound import Compound
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.gradients.rounding import ROUNDINGS, unit_roundoff
from plumbline.gradients.terms import Term


def jitter(gradients: PerSampleGradients, scale: float, seeds: Tensor) -> PerSampleGradients:
    """The gradients with standard Gaussian noise times ``scale`` added to each coordinate.

    Args:
        gradients: ``g_i``.
        scale: The standard deviation of the noise.
        seeds: ``[B]`` int64, not negative: the seed of each record's noise.
    """
    terms = {
        name: Jittered(gradients.term(name), scale, seeds ^ zlib.crc32(name.encode()))
        for name in gradients.names
    }
    return PerSampleGradients(terms, gradients.records, gradients.losses)


class Jittered(Compound):
    """One parameter's gradients, each with its noise."""

    def __init__(self, term: Term, scale: float, seeds: Tensor) -> None:
        self.parts = [term]
        self.records, self.shape = term.records, term.shape
        self._scale = scale
        self._seeds = seeds

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        rows = self.parts[0].dense(start, stop) + self._scale * self._noise(start, stop)
        return rows if out is None else out.copy_(rows)

    def select(self, index: Tensor) -> Jittered:
        return Jittered(self.parts[0].select(index), self._scale, self._seeds[index.cpu()])

    def _between(self) -> Tensor:
        # The gradient and its noise can cancel: the rounding of each counts.
        sizes = self.parts[0].sizes().double() + self._scale * (2 + math.sqrt(self.shape.numel()))
        return sizes * (ROUNDINGS * unit_roundoff(self.dtype))

    def _noise(self, start: int, stop: int) -> Tensor:
        """The standard Gaussian noise of records ``start .. stop - 1``."""
        rows = torch.empty((stop - start, *self.shape), dtype=self.dtype, device=self.device)
        generator = torch.Generator(self.device)
        for row, seed in zip(rows, self._seeds[start:stop].tolist(), strict=True):
            row.normal_(generator=generator.manual_seed(seed))
        return rows
