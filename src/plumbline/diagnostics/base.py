"""What a diagnostic looks at, and what it gives where there is nothing to give.

A ``Sample`` is a batch of records with their gradients, beside how the run would clip and noise
them. Diagnostics are functions of it. They read raw gradients: nothing they say is covered by
epsilon, and what shows it must say so (``NOT_COVERED``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from plumbline.clipping import Clipping
from plumbline.gradients import PerSampleGradients, capture
from plumbline.record_random import Draws
from plumbline.results import Number, Undefined

NOT_COVERED = "computed from raw gradients of private records: not covered by epsilon"

Vector = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Sample:
    """Records to measure on. Those without a finite gradient are left out of every number.

    Attributes:
        gradients: Each record's gradient, at the weights as they are.
        clipping: How the run scales them.
        noise_multiplier: The run's noise, in units of the clipping's sensitivity.
        expected_size: The run's public constant L; by default the number of records.
        groups: Each record's group, ``[B]``, if there are groups.
    """

    gradients: PerSampleGradients
    clipping: Clipping
    noise_multiplier: float = 0.0
    expected_size: int | None = None
    groups: Tensor | None = None

    @classmethod
    def take(
        cls,
        model: nn.Module,
        losses: Callable[[], Tensor],
        clipping: Clipping,
        *,
        noise_multiplier: float = 0.0,
        expected_size: int | None = None,
        groups: Tensor | None = None,
    ) -> Sample:
        """Captures the gradients of ``losses()``, one loss per record."""
        gradients = capture(model, losses)
        return cls(gradients, clipping, noise_multiplier, expected_size, groups)

    @property
    def records(self) -> int:
        """The number of records, B."""
        return self.gradients.records

    @property
    def size(self) -> int:
        """The constant L that sums are divided by in the run."""
        return self.records if self.expected_size is None else self.expected_size

    @cached_property
    def norms(self) -> Tensor:
        """Each record's norm, ``[B]``, zero where the gradient is not finite."""
        return self.gradients.norms().masked_fill(~self.finite, 0)

    @cached_property
    def finite(self) -> Tensor:
        """Which records have a finite gradient and loss, ``[B]``."""
        return torch.isfinite(self.gradients.norms()) & torch.isfinite(self.gradients.losses)

    @cached_property
    def used(self) -> int:
        """The number of records that have a finite gradient."""
        return int(self.finite.sum())

    @cached_property
    def mean(self) -> Vector:
        """The mean gradient, g."""
        mean = scaled(self.gradients.sum(self.finite.to(self.norms)), 1 / max(1, self.used))
        return self._settled(mean, self._length)

    @cached_property
    def along(self) -> Tensor:
        """``<g_i, g>`` of each record, ``[B]`` float64, zero where the gradient is not finite."""
        size = norm(self.mean)
        # Along the unit vector: products with a tiny gradient would vanish in float32.
        unit = scaled(self.mean, 1 / size) if size else self.mean
        return (self.gradients.dot(unit).double() * size).masked_fill(~self.finite, 0)

    @cached_property
    def clipped_mean(self) -> Vector:
        """The mean of the clipped gradients, of bucket averages where the run clips those."""
        if not self.used:
            return scaled(self.mean, 0.0)
        if self.buckets is not None:
            return self._clipped_buckets(self.buckets)
        total = self.clipping.clipped_sum(self.gradients, self.norms, self.finite, self.groups)
        mean = scaled(total, 1 / self.clipping.normaliser(self.used))
        return self._settled(mean, min(self._length, self.clipping.sensitivity))

    @property
    def buckets(self) -> int | None:
        """How many buckets the run would clip these records in; None where it clips each."""
        return self.clipping.buckets(max(1, self.used))

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
        index = members.nonzero()[:, 0]
        groups = None if self.groups is None else self.groups[index.to(self.groups.device)]
        chosen = self.gradients.select(index.to(self.gradients.losses.device))
        return dataclasses.replace(self, gradients=chosen, groups=groups, expected_size=None)

    @property
    def _length(self) -> float:
        return float(self.norms.double().sum()) / max(1, self.used)

    def _settled(self, mean: Vector, length: float) -> Vector:
        """Zero where gradients of this mean length cancelled: rounding has no direction."""
        left = norm(mean) > 4 * torch.finfo(self.gradients.dtype).eps * length
        return mean if left else scaled(mean, 0.0)

    def _clipped_buckets(self, buckets: int) -> Vector:
        """Each record draws its bucket by itself, as in a run; the same one in every diagnosis."""
        index = self.finite.nonzero()[:, 0]
        drawn = Draws(torch.arange(len(index)), "diagnostics").integers(buckets)
        pooled = self.gradients.select(index).pool(drawn.to(index.device), buckets)
        norms = pooled.norms()
        total = self.clipping.clipped_sum(pooled, norms, torch.isfinite(norms), None)
        return scaled(total, 1 / self.clipping.normaliser(self.used))


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
