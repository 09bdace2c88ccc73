"""How much the gradient differs from record to record (Clipping Bias Reduction, Def. 2.5): tau^2.

The paper's theorems say that clipping's bias is bounded by tau, and its cures (averaging over
records, views, past iterates) lower tau of what is clipped. Each cure's effect is the sampling
noise of the gradients it would clip: average them first (``PerSampleGradients.pool`` and
``combine``) and measure that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.checks import check_count
from plumbline.diagnostics.base import Sample, norm, scaled
from plumbline.gradients import PerSampleGradients, combine
from plumbline.results import Number, Undefined


@dataclass(frozen=True)
class SamplingNoise:
    """The spread of the records' gradients about their mean.

    Attributes:
        tau_squared: ``E |g_i - g|^2``.
        tau: Its root, at least ``mean_norm``.
        mean_norm: ``E |g_i - g|``, what Fig. 5a and Def. 4.1 average.
        by_group: tau^2 within each group, about the group's own mean.
    """

    tau_squared: Number
    tau: Number
    mean_norm: Number
    by_group: dict[int, Number]


def sampling_noise(sample: Sample) -> SamplingNoise:
    """tau^2 of the sample, and of each group in it."""
    if (nothing := sample.nothing) is not None:
        return SamplingNoise(nothing, nothing, nothing, {})
    squared = _tau_squared(sample, sample.finite)
    groups = {group: _tau_squared(sample, own) for group, own in sample.members.items()}
    root = squared if isinstance(squared, Undefined) else math.sqrt(squared)
    return SamplingNoise(squared, root, float(deviations(sample).mean()), groups)


def under_averaging(sample: Sample, size: int, generator: torch.Generator) -> SamplingNoise:
    """tau^2 of averages over groups of ``size`` random records (section 3.3), near tau^2 / size.

    On average ``tau^2 (m - 1) / (n - 1)``, for n records in m groups, each used once.
    """
    check_count("size", size)
    buckets = sample.used // size
    if buckets < 2:
        few = Undefined(f"{sample.used} records make fewer than two groups of {size}")
        return SamplingNoise(few, few, few, {})
    index = sample.finite.nonzero()[:, 0]
    order = torch.randperm(len(index), generator=generator)[: buckets * size]
    chosen = index[order.to(index.device)]
    places = torch.arange(len(chosen), device=index.device) % buckets
    averages = combine([sample.gradients.select(chosen).pool(places, buckets)], [1 / size])
    return sampling_noise(Sample(averages, sample.clipping))


def over_iterates(sample: Sample, iterates: Sequence[PerSampleGradients]) -> SamplingNoise:
    """The noise of the same records' gradients, averaged over several iterates.

    If the records' noise were independent between iterates, tau would fall with the root of their
    number; if it were the same, not at all. ``mean_norm`` is what Fig. 5a shows.

    Args:
        sample: Of the same records; only its groups and clipping are used.
        iterates: Their gradients at each iterate, oldest first.
    """
    if not iterates:
        none = Undefined("there are no iterates")
        return SamplingNoise(none, none, none, {})
    averaged = combine(list(iterates), [1 / len(iterates)] * len(iterates))
    return sampling_noise(Sample(averaged, sample.clipping, groups=sample.groups))


def deviations(sample: Sample) -> Tensor:
    """``|g_i - g|`` of each finite record, ``[B]``."""
    squares = sample.norms.double().square() - 2 * sample.along + norm(sample.mean) ** 2
    return squares[sample.finite].clamp(min=0).sqrt()


def _tau_squared(sample: Sample, members: Tensor) -> Number:
    """``E |g_i - g|^2 = E |g_i|^2 - |g|^2`` for the members and their own mean."""
    count = int(members.sum())
    if not count:
        return Undefined("no record has a finite gradient")
    mean = sample.mean
    if count < sample.used:
        mean = scaled(sample.gradients.sum(members.to(sample.norms)), 1 / count)
    squares = sample.norms.double()[members].square()
    return max(0.0, float(squares.mean()) - norm(mean) ** 2)
