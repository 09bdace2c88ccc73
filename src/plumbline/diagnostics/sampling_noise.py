"""How much the gradient differs from record to record (paper 003, Def. 2.5): tau^2.

The paper's theorems say that clipping's bias is bounded by tau, and its cures (averaging over
records, views, past iterates) lower tau of what is clipped. Each cure's effect is the sampling
noise of the gradients it would clip: average them first (``PerSampleGradients.pool`` and
``combine``) and measure that.
"""

from __future__ import annotations

import dataclasses
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
    groups: dict[int, Number] = {}
    if sample.groups is not None:
        own = sample.groups.to(sample.finite.device)
        for group in sorted(set(own.tolist())):
            groups[group] = _tau_squared(sample, sample.finite & (own == group))
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
    return sampling_noise(dataclasses.replace(sample, gradients=averages, groups=None))


def over_iterates(
    sample: Sample, iterates: Sequence[PerSampleGradients], decay: float | None = None
) -> SamplingNoise:
    """The noise of the same records' gradients, averaged over several iterates.

    If the records' noise were independent between iterates, tau would fall with the root of their
    number; if it were the same, not at all. ``mean_norm`` is what Fig. 5a shows, and with a decay
    the mean over records of Def. 4.1's EA.

    Args:
        sample: Of the same records; only its groups and clipping are used.
        iterates: Their gradients at each iterate, oldest first.
        decay: None for the plain mean (the sliding window of Fig. 5a). A rate gamma gives the
            exponential average of Def. 4.1, ``sum_l (1 - gamma)^(k - l) xi_l``.
    """
    if not iterates:
        none = Undefined("there are no iterates")
        return SamplingNoise(none, none, none, {})
    count = len(iterates)
    if decay is None:
        weights = [1 / count] * count
    else:
        weights = [(1 - decay) ** (count - 1 - place) for place in range(count)]
    averaged = combine(list(iterates), weights)
    return sampling_noise(dataclasses.replace(sample, gradients=averaged))


@dataclass(frozen=True)
class NormalisedBound:
    """Theorem 3.1, for normalised DP-SGD: ``min_k E |grad F| <= optimisation + 15 tau``.

    Attributes:
        optimisation: ``sqrt(32 beta F(w_0) (2 + sigma^2 d) / T)``, which falls with the steps.
        bias: ``15 tau``, which does not.
    """

    optimisation: float
    bias: Number


def normalised_bound(
    noise: SamplingNoise,
    *,
    smoothness: float,
    loss: float,
    noise_std: float,
    dimensions: int,
    steps: int,
) -> NormalisedBound:
    """The right side of Theorem 3.1.

    Args:
        noise: Measured; tau is assumed to hold at every iterate.
        smoothness: beta.
        loss: F(w_0), the loss at the start (the smallest being zero).
        noise_std: sigma, of the noise on the mean of the normalised gradients, per coordinate.
        dimensions: d.
        steps: T.
    """
    first = math.sqrt(32 * smoothness * loss * (2 + noise_std**2 * dimensions) / steps)
    return NormalisedBound(first, _times(15, noise.tau))


@dataclass(frozen=True)
class ClippedBound:
    """Theorem 3.2, for clipped DP-SGD: ``left <= optimisation + bias``.

    Attributes:
        unclipped: ``P_k``, the share of gradients below the threshold.
        left: ``P |g|^2 + (c (1 - P) / 4 - sqrt(1 - P) tau) |g|`` at this iterate.
        optimisation: ``sqrt(2 beta c^2 (2 + sigma^2 d) F(w_0) / T)``.
        bias: ``15 c tau sqrt(1 - P) / 4``.
    """

    unclipped: Number
    left: Number
    optimisation: Number
    bias: Number


def clipped_bound(
    sample: Sample, *, smoothness: float, loss: float, noise_std: float, steps: int
) -> ClippedBound:
    """Both sides of Theorem 3.2 at this iterate; arguments as for ``normalised_bound``.

    ``noise_std`` is in units of the threshold, as the theorem has it.
    """
    clip = sample.clipping.sensitivity
    if math.isinf(clip):
        none = Undefined("the run does not clip")
        return ClippedBound(none, none, none, none)
    variance = 2 + noise_std**2 * sample.dimensions
    first = math.sqrt(2 * smoothness * clip**2 * variance * loss / steps)
    tau = sampling_noise(sample).tau
    if isinstance(tau, Undefined):
        return ClippedBound(tau, tau, first, tau)
    below = float((sample.norms[sample.finite] < clip).double().mean())
    size = norm(sample.mean)
    rest = math.sqrt(1 - below)
    left = below * size**2 + (clip * (1 - below) / 4 - rest * tau) * size
    return ClippedBound(below, left, first, 15 * clip * tau * rest / 4)


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


def _times(factor: float, value: Number) -> Number:
    return value if isinstance(value, Undefined) else factor * value
