"""Where sharpness- and bias-aware methods look.

From Bias-Aware Minimisation, App. A.2; Sharpness-Aware Training, App. F.

They take gradients uphill: DP-SAT along the previous released gradient, BAM along each record's
own. How well that agrees with the plain mean gradient says whether looking there can help.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.diagnostics.base import Sample, cosine, norm
from plumbline.results import Number, Undefined


@dataclass(frozen=True)
class AscentDirections:
    """Cosines of the methods' ascent directions with the plain mean gradient.

    Attributes:
        dp_sat: Of the previous released gradient.
        bam: The mean over records of the cosine of a record's gradient.
        bam_positive: The share of records for which it is positive.
    """

    dp_sat: Number
    bam: Number
    bam_positive: Number


def ascent_directions(
    sample: Sample, previous: Mapping[str, Tensor] | None = None
) -> AscentDirections:
    """How DP-SAT's and BAM's ascent directions lie to the plain mean gradient.

    Args:
        sample: The records at the present weights.
        previous: What the previous step released.
    """
    plain = sample.plain
    if (nothing := plain.nothing) is not None:
        return AscentDirections(nothing, nothing, nothing)
    sat: Number = Undefined("no earlier released gradient was given")
    if previous:
        sat = cosine(previous, plain.mean)
    size = norm(plain.mean)
    if size == 0:
        zero = Undefined("the mean gradient is zero")
        return AscentDirections(zero if previous else sat, zero, zero)
    moving = plain.finite & (plain.norms > 0)
    if not bool(moving.any()):
        none = Undefined("every record's gradient is zero")
        return AscentDirections(sat, none, none)
    cosines = plain.along[moving] / (plain.norms.double()[moving] * size)
    return AscentDirections(sat, float(cosines.mean()), float((cosines > 0).double().mean()))


def successive_cosines(gradients: Sequence[Mapping[str, Tensor]]) -> list[Number]:
    """The cosine of each gradient with the one before it.

    Sharpness-Aware Training, App. F takes clipped sums before the noise; of released ones, noise
    lowers it.
    """
    return [cosine(after, before) for before, after in itertools.pairwise(gradients)]


def adjacent_batches(
    before: Sample, after: Sample, size: int, generator: torch.Generator, pairs: int = 8
) -> Number:
    """The mean cosine of the clipped gradients of two steps, each with a batch of its own.

    Sharpness-Aware Training, Table 8 and Fig. 12. Both samples are of the same records, at the
    weights of the two steps; a pair of batches has no record in common.

    Args:
        before: At the step before.
        after: At this one.
        size: Records to a batch.
        generator: Draws the batches.
        pairs: The mean is over so many pairs of batches.
    """
    if 2 * size > after.records:
        return Undefined(f"{after.records} records make no two batches of {size}")
    found = []
    for _ in range(pairs):
        drawn = torch.randperm(after.records, generator=generator)[: 2 * size].view(2, size)
        first, second = (
            torch.zeros(after.records, dtype=torch.bool).index_fill(0, own, True) for own in drawn
        )
        found.append(cosine(before.of(first).clipped_mean, after.of(second).clipped_mean))
    known = [one for one in found if not isinstance(one, Undefined)]
    if not known:
        return Undefined(f"no two batches of {size} have a gradient")
    return sum(known) / len(known)
