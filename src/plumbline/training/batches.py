"""A step's batch as a method sees it: the records that were drawn, in physical chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from plumbline.gradients.capturing import Perturbation, capture
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.mechanism.calibration import Plan
from plumbline.sampling import chunks
from plumbline.training.losses import BatchLoss


class Owner(Protocol):
    """What a batch needs of the ``Private`` that drew it."""

    model: nn.Module
    loss: BatchLoss
    plan: Plan
    sensitive_features: Tensor | None
    max_physical_batch: int | None

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""

    def fetch(self, indices: Tensor) -> Any:
        """Some records, as the loss sees them, on the model's device."""


@dataclass(eq=False)
class PrivateBatch:
    """A step's Poisson batch, possibly empty.

    Attributes:
        step: The number of the step it is for.
        indices: The records' numbers, ``[R]``. Who is in a batch is private: do not publish it.
    """

    step: int
    indices: Tensor
    _owner: Owner = field(repr=False)
    _groups: Tensor | None = field(repr=False)
    _units: int = field(repr=False)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the gradient query."""
        return self._owner.plan.noise_multiplier

    @property
    def expected_size(self) -> int:
        """The public constant L by which sums are divided."""
        return self._owner.plan.expected_batch_size

    def chunks(self) -> Iterator[PrivateChunk]:
        """The physical chunks, in order; every call starts again."""
        places = torch.arange(len(self.indices))
        for part in chunks(places, self._owner.max_physical_batch, self._groups):
            groups = None if self._groups is None else self._groups[part]
            if groups is not None:
                groups = groups - groups[0]
            yield PrivateChunk(self._owner, self.indices[part], groups)

    def zeros(self) -> dict[str, Tensor]:
        """A zero for every trainable parameter: the sum over an empty batch."""
        return {name: torch.zeros_like(p) for name, p in self._owner.parameters().items()}


class PrivateChunk:
    """A physical part of a batch."""

    def __init__(self, owner: Owner, indices: Tensor, groups: Tensor | None) -> None:
        self._owner = owner
        self._groups = groups
        self.indices = indices

    @property
    def units(self) -> int:
        """How many records (or users) it has."""
        return len(self.indices) if self._groups is None else int(self._groups[-1]) + 1

    @property
    def sensitive_features(self) -> Tensor | None:
        """The group of each record, ``[R]``, if groups were given."""
        features = self._owner.sensitive_features
        return None if features is None else features[self.indices]

    @cached_property
    def data(self) -> Any:
        """The records, as the loss sees them."""
        return self._owner.fetch(self.indices)

    def losses(self) -> Tensor:
        """Each record's loss, ``[R]``."""
        return self._owner.loss(self._owner.model, self.data)

    def capture(self, at: Perturbation | Mapping[str, Tensor] | None = None) -> PerSampleGradients:
        """The gradients of its units: records, or users with all of their records."""
        model = self._owner.model
        gradients = capture(model, self.losses, at=at, records=len(self.indices))
        return gradients if self._groups is None else gradients.pool(self._groups, self.units)
