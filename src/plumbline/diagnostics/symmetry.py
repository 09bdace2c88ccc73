"""Whether the gradients that the run clips lie symmetrically about their mean.

From Geometric Perspective.

Clipping a distribution that is symmetric about the true gradient g keeps its direction (Theorem 2);
what is lost on another one is the bias b_t (Eq. 5). With ``xi_i = g_i - g`` the noise of record i
and ``phi(xi) = <g, clip(g + xi)>``, everything here is a function of the records' norms and of
``<g_i, g>``: the mirror image ``g - xi_i = 2 g - g_i`` has the norm
``sqrt(4 |g|^2 - 4 <g_i, g> + n_i^2)``, so that nothing of size records x parameters is built. The
symmetrised distribution puts half of each record's weight on its mirror image. Clipping is flat
clipping at c, whatever the run uses: that is what the theorems are about.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from plumbline.clipping.flat import flat_factors
from plumbline.diagnostics.base import Sample, finite_or, norm
from plumbline.results import Number, Undefined

_UNCLIPPED = "the run does not clip, and no threshold was given"


@dataclass(frozen=True)
class Symmetry:
    """Symmetry of the gradients' noise, and what clipping at ``clip`` makes of the lack of it.

    Attributes:
        clip: The threshold c.
        gradient_norm: ``|g|``.
        alignment: ``E_p phi``, how far a clipped step goes along g.
        symmetric_alignment: ``E phi`` under the symmetrised distribution: Theorem 2's left side.
        small_noise: ``P(|xi| < c / 4)``, the same for both distributions.
        lower_bound: Theorem 2's right side, ``|g| min(|g|, 3c/4) P(|xi| < c/4)``.
        bias: b_t of Eq. 5, ``alignment - symmetric_alignment``; negative where skewness hurts.
        wasserstein: Theorem 5's distance between the empirical and the symmetrised noise, exact;
            at least ``|bias|``.
        cosines: The cosine of each record's gradient with g, ``[B]``.
        cosine_p_value: Of a Wilcoxon signed-rank test that cosines are symmetric about zero: those
            of every other record with the mean of the rest. (With more parameters than records, a
            record leans towards any mean that it is part of.)
    """

    clip: Number
    gradient_norm: Number
    alignment: Number
    symmetric_alignment: Number
    small_noise: Number
    lower_bound: Number
    bias: Number
    wasserstein: Number
    cosines: Tensor
    cosine_p_value: Number


def symmetry(sample: Sample, clip: float | None = None) -> Symmetry:
    """Both sides of Theorem 2, b_t, and the Wasserstein distance of Theorem 5.

    Args:
        sample: The records; their distribution is taken for p.
        clip: c; by default the sensitivity of the run's clipping.
    """
    clip = sample.clipping.sensitivity if clip is None else clip
    if (nothing := sample.nothing) is not None:
        return _unknown(finite_or(clip, _UNCLIPPED), nothing, nothing, nothing)
    scalars = _Scalars(sample)
    if math.isinf(clip):
        none = Undefined(_UNCLIPPED)
        return _unknown(none, none, scalars.size, none)
    if scalars.size == 0:
        zero = Undefined("the mean gradient is zero")
        return _unknown(clip, zero, 0.0, scalars.small_noise(clip))
    straight, mirrored = scalars.aligned(clip), scalars.mirrored(clip)
    alignment = float(straight.mean())
    symmetric = (alignment + float(mirrored.mean())) / 2
    both = torch.cat([straight, mirrored])
    return Symmetry(
        clip=clip,
        gradient_norm=scalars.size,
        alignment=alignment,
        symmetric_alignment=symmetric,
        small_noise=scalars.small_noise(clip),
        lower_bound=scalars.size * min(scalars.size, 0.75 * clip) * scalars.small_noise(clip),
        bias=alignment - symmetric,
        wasserstein=float(stats.wasserstein_distance(straight.numpy(), both.numpy())),
        cosines=scalars.cosines(),
        cosine_p_value=_symmetric_about_zero(_held_out_cosines(sample)),
    )


def projections(sample: Sample, generator: torch.Generator, count: int = 8) -> Tensor:
    """The gradients in ``count`` random planes, ``[count, B, 2]``.

    From Geometric Perspective, Figs. 1 and 2.

    Projected by Gaussian matrices, scaled to keep squared norms on average.
    """
    planes = []
    for _ in range(count):
        axes = [
            {
                name: torch.randn(value.shape, generator=generator).to(value) / math.sqrt(2)
                for name, value in sample.mean.items()
            }
            for _ in range(2)
        ]
        planes.append(torch.stack([sample.gradients.dot(axis)[sample.finite] for axis in axes], 1))
    return torch.stack(planes)


class _Scalars:
    """The few numbers of each finite record that all of the above is made of, in float64."""

    def __init__(self, sample: Sample) -> None:
        self.size = norm(sample.mean)
        self._norms = sample.norms[sample.finite].double().cpu()
        self._along = sample.along[sample.finite].cpu()

    def aligned(self, clip: float) -> Tensor:
        """``phi(xi_i) = <g, clip(g_i)>``, ``[B]``."""
        return flat_factors(self._norms, clip) * self._along

    def mirrored(self, clip: float) -> Tensor:
        """``phi(-xi_i) = <g, clip(2 g - g_i)>``, ``[B]``."""
        squares = 4 * self.size**2 - 4 * self._along + self._norms.square()
        return flat_factors(squares.clamp(min=0).sqrt(), clip) * (2 * self.size**2 - self._along)

    def deviations(self) -> Tensor:
        """``|xi_i|^2``, ``[B]``."""
        return (self._norms.square() - 2 * self._along + self.size**2).clamp(min=0)

    def small_noise(self, clip: float) -> float:
        """``P(|xi| < clip / 4)``."""
        return float((self.deviations().sqrt() < clip / 4).double().mean())

    def cosines(self) -> Tensor:
        """Of each record's gradient with g, ``[B]``; zero for a zero gradient."""
        lengths = (self._norms * self.size).clamp(min=1e-300)
        return (self._along / lengths).clamp(-1, 1)


def _unknown(clip: Number, reason: Undefined, size: Number, small_noise: Number) -> Symmetry:
    unknown: Any = dict.fromkeys((one.name for one in fields(Symmetry)), reason)
    known = {"clip": clip, "gradient_norm": size, "small_noise": small_noise}
    return Symmetry(**{**unknown, **known, "cosines": torch.zeros(0)})


def _held_out_cosines(sample: Sample) -> Tensor:
    """Of every other record's gradient with the sum of the rest, ``[B / 2]``; zero for zero."""
    index = sample.finite.nonzero()[:, 0]
    rest = torch.zeros_like(sample.norms)
    rest[index[::2]] = 1
    direction = sample.gradients.sum(rest)
    along = sample.gradients.dot(direction).double()[index[1::2]]
    lengths = sample.norms.double()[index[1::2]] * norm(direction)
    return (along / lengths.clamp(min=1e-300)).cpu()


def _symmetric_about_zero(values: Tensor) -> Number:
    moved = values[values != 0]
    if len(moved) < 10:
        return Undefined(f"only {len(moved)} cosines are not zero; the test needs ten")
    # The default tries every permutation where cosines are tied, which can take seconds.
    return float(stats.wilcoxon(moved.numpy(), method="approx").pvalue)
