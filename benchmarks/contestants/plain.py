"""The non-private step: the distance every other contestant is measured in."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.contestants.base import Settings
from benchmarks.models import Workload


class NonPrivate:
    """Plain SGD on the mean loss."""

    def __init__(self, workload: Workload, settings: Settings, size: int | None = None) -> None:
        self.model = workload.model()
        self.x, self.y = workload.batch(size)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=settings.learning_rate)

    def step(self) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the weights by name."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}
