"""How clipping bends the batch gradient.

From Bias-Aware Minimisation, section 4 and App. C; Gradient Misalignment, section 4.

With g the plain mean gradient of a batch (what non-private SGD would take) and gbar the mean of the
gradients that the method clips (what the run would release, before the noise), the bias is ``gbar -
g``. Theorem 1 of Bias-Aware Minimisation splits ``gbar = a g + c`` with c orthogonal to g: a is
what is left of the gradient (magnitude error), c points elsewhere (directional error). Its Eq. 20
prints ``max(1, C / n)`` for ``max(1, n / C)``. The error of a released gradient has three parts:
the bias squared, the variance of the noise, and the variance of sampling the batch. They add up:
the bias is fixed, noise and sampling are independent of each other and have mean zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from plumbline.diagnostics.base import Sample, added, cosine, dot, norm, ratio
from plumbline.results import Number, Undefined


@dataclass(frozen=True)
class Bias:
    """How far the clipped mean gradient lies from the plain mean gradient.

    Its norm alone can mislead: BAM lowers it without turning the gradient back. Show ``norm``,
    ``relative`` and the angle (``degrees``) together.

    Attributes:
        gradient_norm: ``|g|``.
        clipped_norm: ``|gbar|``.
        norm: ``|gbar - g|``.
        relative: The same, divided by ``|g|``.
        magnitude: a, the part of g that is left: ``<gbar, g> / |g|^2``; 1 for none lost.
        direction: ``|c|``, the length of what is orthogonal to g.
        relative_direction: ``|c| / |g|``.
        cosine: Of gbar and g.
    """

    gradient_norm: Number
    clipped_norm: Number
    norm: Number
    relative: Number
    magnitude: Number
    direction: Number
    relative_direction: Number
    cosine: Number

    @property
    def degrees(self) -> Number:
        """The angle between gbar and g."""
        if isinstance(self.cosine, Undefined):
            return self.cosine
        return math.degrees(math.acos(max(-1.0, min(1.0, self.cosine))))


@dataclass(frozen=True)
class BiasByGroup(Bias):
    """The bias on all records, and on each group's own, by the group's name."""

    by_group: Mapping[str, Bias]


def bias(sample: Sample) -> Bias:
    """The bias and its parts; ``norm^2 = (1 - magnitude)^2 |g|^2 + direction^2``."""
    if (nothing := sample.nothing) is not None:
        return Bias(*[nothing] * 8)
    g, gbar = sample.plain.mean, sample.clipped_mean
    size, offset = norm(g), norm(added(gbar, g, -1.0))
    zero = "the mean gradient is zero"
    magnitude = ratio(dot(gbar, g), size**2, zero)
    direction: Number = Undefined(zero)
    if not isinstance(magnitude, Undefined):
        direction = norm(added(gbar, g, -magnitude))
    relative_direction = (
        direction if isinstance(direction, Undefined) else ratio(direction, size, zero)
    )
    return Bias(
        gradient_norm=size,
        clipped_norm=norm(gbar),
        norm=offset,
        relative=ratio(offset, size, zero),
        magnitude=magnitude,
        direction=direction,
        relative_direction=relative_direction,
        cosine=cosine(gbar, g),
    )


@dataclass(frozen=True)
class ErrorParts:
    """The expected squared error of a released gradient, by cause.

    Attributes:
        bias: ``|gbar - g|^2``: clipping.
        noise: ``d (sigma S)^2 / L^2`` for sensitivity S: the mechanism.
        sampling: ``(1 - q) E |w_i g_i|^2 / L``: which records a Poisson batch draws.
        total: Their sum.
    """

    bias: Number
    noise: Number
    sampling: Number
    total: Number


def error_parts(sample: Sample, sampling_rate: float = 0.0) -> ErrorParts:
    """What the error of a released gradient is made of, the sample taken for the whole data set.

    Args:
        sample: The records; their distribution is taken for that of the data set.
        sampling_rate: q, of the run's Poisson sampling. Zero says that it is small.
    """
    if (nothing := sample.nothing) is not None:
        return ErrorParts(*[nothing] * 4)
    bent = norm(added(sample.clipped_mean, sample.plain.mean, -1.0)) ** 2
    noise, sampling = _noise(sample), _sampling(sample, sampling_rate)
    if isinstance(noise, Undefined):
        return ErrorParts(bent, noise, sampling, noise)
    if isinstance(sampling, Undefined):
        return ErrorParts(bent, noise, sampling, sampling)
    return ErrorParts(bent, noise, sampling, bent + noise + sampling)


@dataclass(frozen=True)
class BiasAtSize:
    """The bias of batches of one size (Bias-Aware Minimisation, Figs. 5 and 6).

    Attributes:
        size: Records to a batch.
        norm: The mean of ``|gbar - g|`` over batches.
        relative: The mean of the same divided by ``|g|``.
        cosine: The mean of the cosine of gbar and g.
        batches: How many batches there were.
    """

    size: int
    norm: Number
    relative: Number
    cosine: Number
    batches: int


def bias_by_batch_size(
    sample: Sample, sizes: Sequence[int], generator: torch.Generator, batches: int = 8
) -> list[BiasAtSize]:
    """The bias in random batches of the sample's records, for each size."""
    count = sample.records if sample.drawn is None else sample.drawn
    results = []
    for size in sizes:
        if not 1 <= size <= count:
            reason = Undefined(f"the sample has {count} records, not {size}")
            results.append(BiasAtSize(size, reason, reason, reason, 0))
            continue
        found = []
        for _ in range(batches if size < count else 1):
            index = torch.randperm(count, generator=generator)[:size]
            chosen = torch.zeros(count, dtype=torch.bool)
            chosen[index] = True
            found.append(bias(sample.of(chosen)))
        norms, parts, cosines = (
            _mean([getattr(one, name) for one in found]) for name in ("norm", "relative", "cosine")
        )
        results.append(BiasAtSize(size, norms, parts, cosines, len(found)))
    return results


def _noise(sample: Sample) -> Number:
    if sample.noise_multiplier == 0:
        return 0.0
    if math.isinf(sample.clipping.sensitivity):
        return Undefined("nothing bounds the gradients, and no noise is enough")
    std = sample.noise_multiplier * sample.clipping.sensitivity
    return float(sample.dimensions * (std / sample.clipping.normaliser(sample.size)) ** 2)


def _sampling(sample: Sample, rate: float) -> Number:
    if sample.in_buckets:
        return Undefined("the clipping scales averages of records")
    try:
        factors = sample.clipping.factors(sample.norms, sample.groups)
    except TypeError:
        return Undefined("the clipping has no single factor for a record")
    lengths = (factors * sample.norms).double()[sample.finite]
    return (1 - rate) * float(lengths.square().mean()) / sample.size


def _mean(values: Sequence[Number]) -> Number:
    known = [value for value in values if not isinstance(value, Undefined)]
    if not known:
        return Undefined("no batch has a gradient")
    return math.fsum(known) / len(known)
