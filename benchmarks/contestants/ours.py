"""Plumbline's DP-SGD and BAM steps, written against `plumbline.gradients` alone.

The other libraries are timed without their data loaders and accountants, so ours is timed
without `make_private` too: capture, norms, clipped sum, ordinary torch noise, optimizer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.contestants.base import Settings
from benchmarks.models import Workload
from plumbline.gradients import PerSampleGradients, Perturbation, capture


class DPSGD:
    """Clip each record's gradient, sum, add noise, step."""

    def __init__(self, workload: Workload, settings: Settings, size: int | None = None) -> None:
        self.model = workload.model()
        self.x, self.y = workload.batch(size)
        self.settings = settings
        self.named = dict(self.model.named_parameters())
        self.optimizer = torch.optim.SGD(self.named.values(), lr=settings.learning_rate)

    @staticmethod
    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """One loss per row of a batch."""
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="none")

    def captured(self, at: Perturbation | None = None) -> PerSampleGradients:
        """Each record's gradient."""
        return capture(self.model, self.losses, (self.x, self.y), at)

    def step(self) -> None:
        """One DP-SGD step."""
        self._release(self.captured())

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the weights by name."""
        return {name: p.detach().clone() for name, p in self.named.items()}

    def _release(self, gradients: PerSampleGradients) -> None:
        clip = self.settings.clip
        clipped = gradients.sum((clip / gradients.norms()).clamp(max=1.0))
        noise = torch.randn(sum(p.numel() for p in self.named.values()))
        noise.mul_(self.settings.noise_multiplier * clip)
        parts = noise.split([p.numel() for p in self.named.values()])
        for (name, p), part in zip(self.named.items(), parts, strict=True):
            p.grad = part.view_as(p).add_(clipped[name]).div_(len(self.y))
        self.optimizer.step()


class BAM(DPSGD):
    """The same step with record i's gradient taken at `theta + radius * g_i / |g_i|`."""

    def step(self) -> None:
        """One BAM step: an ascent per record, then DP-SGD on what is found there."""
        first = self.captured()
        self._release(self.captured(Perturbation(first, self.settings.radius / first.norms())))
