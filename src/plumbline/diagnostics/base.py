"""What a diagnostic measures on, and what it gives where there is nothing to give.

A ``Sample`` is a batch of records with two gradients each: **the method's gradient before
clipping**, which the run would clip and noise (after views, at BAM's weights, averaged in
buckets...), and **the plain gradient**, that of the record's loss at the weights as they are, which
non-private SGD would take. For DP-SGD they are the same. Diagnostics read raw gradients: nothing
they say is covered by epsilon, and what shows it must say so (``NOT_COVERED``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.clipping import Clipping
from plumbline.gradients import Loss, PerSampleGradients, capture, combine
from plumbline.results import Number, Undefined

NOT_COVERED = "computed from raw gradients of private records: not covered by epsilon"

Vector = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Sample:
    """Units to measure on: records, or users, or averages of buckets of records.

    Units without a finite gradient are left out of every number.

    Attributes:
        gradients: Each unit's gradient as the method clips it; of a bucket, the average.
        clipping: How the run scales them.
        noise_multiplier: The run's noise, in units of the clipping's sensitivity.
        expected_size: The run's public constant L; by default the number of units.
        groups: Each unit's group, ``[B]``, if there are groups; buckets have none.
        plain_sample: The sample of plain gradients; None where they are what is clipped.
        drawn: How many records are in the buckets, where the units are buckets.
        retake: Takes the sample of some of the records, ``[records]`` bool, where the units are
            buckets: these records would be in other buckets.
    """

    gradients: PerSampleGradients
    clipping: Clipping
    noise_multiplier: float = 0.0
    expected_size: int | None = None
    groups: Tensor | None = None
    plain_sample: Sample | None = field(default=None, repr=False)
    drawn: int | None = None
    retake: Callable[[Tensor], Sample] | None = field(default=None, repr=False)

    @classmethod
    def take(
        cls,
        model: nn.Module,
        loss: Loss,
        batch: Any,
        clipping: Clipping,
        *,
        noise_multiplier: float = 0.0,
        expected_size: int | None = None,
        groups: Tensor | None = None,
    ) -> Sample:
        """Captures the plain gradients of a batch, by ``loss(model, batch)``, one per record.

        ``plumbline.diagnostics.sample`` takes those of a run through its method.
        """
        gradients = capture(model, loss, batch)
        return cls(gradients, clipping, noise_multiplier, expected_size, groups)

    @property
    def plain(self) -> Sample:
        """The same records with their plain gradients."""
        return self if self.plain_sample is None else self.plain_sample

    @property
    def records(self) -> int:
        """The number of units, B."""
        return self.gradients.records

    @property
    def size(self) -> int:
        """The constant L that sums are divided by in the run."""
        return self.records if self.expected_size is None else self.expected_size

    @cached_property
    def norms(self) -> Tensor:
        """Each unit's norm, ``[B]``, zero where the gradient is not finite."""
        return self.gradients.norms().masked_fill(~self.finite, 0)

    @cached_property
    def finite(self) -> Tensor:
        """Which units have a finite gradient and loss, ``[B]``."""
        return torch.isfinite(self.gradients.norms()) & torch.isfinite(self.gradients.losses)

    @cached_property
    def used(self) -> int:
        """The number of units that have a finite gradient."""
        return int(self.finite.sum())

    @cached_property
    def clipped(self) -> Tensor | Undefined:
        """Which units the run scales down further than a short one, ``[B]`` bool."""
        return self.clipping.is_clipped(self._added_up, self.norms * self._pooled, self.groups)

    @cached_property
    def mean(self) -> Vector:
        """The mean gradient before clipping."""
        count = self._constant if self.drawn is not None else max(1, self.used)
        mean = scaled(self.gradients.sum(self.finite.to(self.norms)), 1 / count)
        return self._settled(mean, self._length)

    @cached_property
    def along(self) -> Tensor:
        """``<g_i, g>`` of each unit, ``[B]`` float64, zero where the gradient is not finite."""
        size = norm(self.mean)
        # Along the unit vector: products with a tiny gradient would vanish in float32.
        unit = scaled(self.mean, 1 / size) if size else self.mean
        return (self.gradients.dot(unit).double() * size).masked_fill(~self.finite, 0)

    @cached_property
    def clipped_mean(self) -> Vector:
        """The mean of the clipped gradients: what the run would release, before the noise."""
        if not self.used:
            return scaled(self.mean, 0.0)
        norms = self.norms * self._pooled
        total = self.clipping.clipped_sum(self._added_up, norms, self.finite, self.groups)
        mean = scaled(total, 1 / self._constant)
        return self._settled(mean, min(self._length, self.clipping.sensitivity))

    @property
    def in_buckets(self) -> bool:
        """Whether the run pools records into buckets before it clips."""
        return self.clipping.buckets(1) is not None

    @cached_property
    def dimensions(self) -> int:
        """The number of trainable parameters, d."""
        return sum(value.numel() for value in self.mean.values())

    @property
    def nothing(self) -> Undefined | None:
        """Why nothing can be said of this sample, if so."""
        if self.records == 0:
            return Undefined("the batch has no records")
        if not bool(self.finite.any()):
            return Undefined("no record has a finite gradient")
        return None

    def of(self, members: Tensor) -> Sample:
        """The sample of the records ``members`` (``[B]`` bool)."""
        if self.retake is not None:
            return self.retake(members)
        index = members.nonzero()[:, 0]
        groups = None if self.groups is None else self.groups[index.to(self.groups.device)]
        chosen = self.gradients.select(index.to(self.gradients.losses.device))
        plain = None if self.plain_sample is None else self.plain_sample.of(members)
        return dataclasses.replace(
            self, gradients=chosen, groups=groups, expected_size=None, plain_sample=plain
        )

    @property
    def members(self) -> dict[int, Tensor]:
        """Which units of each group have a finite gradient, ``[B]`` bool, by the group's value."""
        if self.groups is None:
            return {}
        groups = self.groups.to(self.finite.device)
        return {value: (groups == value) & self.finite for value in sorted(set(groups.tolist()))}

    @property
    def _pooled(self) -> float:
        """By how much an average is multiplied to be what the clipping is given: a sum."""
        return 1 / self.clipping.normaliser(1) if self.in_buckets else 1.0

    @cached_property
    def _added_up(self) -> PerSampleGradients:
        return combine([self.gradients], [self._pooled]) if self.in_buckets else self.gradients

    @property
    def _constant(self) -> float:
        """What sums are divided by, were this sample the run's batch."""
        drawn = self._pooled * self.used if self.drawn is None else self.drawn
        return self.clipping.normaliser(max(1, round(drawn)))

    @property
    def _length(self) -> float:
        return float(self.norms.double().sum()) / max(1, self.used)

    def _settled(self, mean: Vector, length: float) -> Vector:
        """Zero where gradients of this mean length cancelled: rounding has no direction."""
        left = norm(mean) > 4 * torch.finfo(self.gradients.dtype).eps * length
        return mean if left else scaled(mean, 0.0)


def dot(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """The inner product of two vectors by parameter name, in float64."""
    return sum(float((first[name].double() * second[name].double()).sum()) for name in first)


def norm(vector: Mapping[str, Tensor]) -> float:
    """The L2 norm over all parameters, in float64."""
    return math.sqrt(dot(vector, vector))


def scaled(vector: Mapping[str, Tensor], scale: float) -> Vector:
    """``scale * vector``."""
    return {name: value * scale for name, value in vector.items()}


def added(first: Mapping[str, Tensor], second: Mapping[str, Tensor], scale: float = 1.0) -> Vector:
    """``first + scale * second``, in float64: the two may nearly cancel."""
    return {name: value.double() + scale * second[name].double() for name, value in first.items()}


def cosine(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Number:
    """The cosine of the angle between two vectors."""
    lengths = norm(first) * norm(second)
    if lengths == 0:
        return Undefined("one of the two vectors is zero")
    if not math.isfinite(lengths):
        return Undefined("one of the two vectors is not finite")
    return max(-1.0, min(1.0, dot(first, second) / lengths))


def ratio(numerator: float, denominator: float, reason: str) -> Number:
    """The quotient, or why there is none."""
    return Undefined(reason) if denominator == 0 else numerator / denominator


def finite_or(value: float, reason: str) -> Number:
    """The value, or why it is no number."""
    return value if math.isfinite(value) else Undefined(reason)
