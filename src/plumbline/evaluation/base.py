"""What an evaluation is, and what it sees of a batch.

``training`` hands a method a ``Batch``, which comes in physical chunks; a chunk captures its own
units' gradients (a unit is a record, or a user with all of their records).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor

from plumbline.gradients import PerSampleGradients, Perturbation


class Chunk(Protocol):
    """A physical part of a batch."""

    @property
    def units(self) -> int:
        """How many records (or users) it has."""

    def capture(self, at: Perturbation | Mapping[str, Tensor] | None = None) -> PerSampleGradients:
        """The gradients of its units, one forward and one backward pass."""


class Batch(Protocol):
    """A step's records, as a method sees them."""

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the gradient query."""

    @property
    def expected_size(self) -> int:
        """The public constant L by which sums are divided."""

    def chunks(self) -> Iterator[Chunk]:
        """The physical chunks, in order; every call starts again."""

    def zeros(self) -> dict[str, Tensor]:
        """A zero for every trainable parameter: the sum over an empty batch."""


class Evaluation(ABC):
    """A rule for where a unit's gradient is taken."""

    @abstractmethod
    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        """Each unit's gradient."""

    def state_dict(self) -> dict[str, Any]:
        """What the rule carries from step to step; empty for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state that ``state_dict`` gave."""
        if state:
            raise ValueError(
                f"{type(self).__name__} carries no state, but {sorted(state)} was stored."
            )
