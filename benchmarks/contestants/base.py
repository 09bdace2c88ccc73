"""What every contestant is: something that can take one training step on one fixed batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from benchmarks.models import Workload


@dataclass(frozen=True)
class Settings:
    """The step every contestant takes: clip, noise, SGD.

    The learning rate is small so that hundreds of timed steps do not wander into weights where
    the arithmetic is slow (subnormal or infinite numbers).
    """

    clip: float = 1.0
    noise_multiplier: float = 1.0
    learning_rate: float = 1e-3
    radius: float = 0.02


class Contestant(Protocol):
    """A network, an optimizer and a batch, ready to step."""

    def step(self) -> None:
        """One whole training step, finished when the call returns."""

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the current weights, by the names and shapes of the plain network."""


class Factory(Protocol):
    """Builds a contestant for a workload; `size` overrides the number of records."""

    def __call__(
        self, workload: Workload, settings: Settings, size: int | None = None
    ) -> Contestant:
        """Build it, or raise with the reason why this contestant cannot train this network."""
