"""Problems whose diagnostics can be computed by hand: dense gradients, exact Hessians, bad records.

``rows`` makes a sample of given gradients; ``dense`` gives back what any sample holds as one matrix
``[B, d]``, from which the tests compute everything again, record by record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plumbline.clipping import Clipping, Flat
from plumbline.diagnostics import Sample, Undefined, to_json
from plumbline.gradients import PerSampleGradients


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def rows(gradients: Tensor, clipping: Clipping | None = None, **settings: Any) -> Sample:
    """A sample of records with these gradients, ``[B, d]``, clipped flat at one."""
    losses = gradients.new_zeros(len(gradients))
    held = PerSampleGradients.of({"weight": gradients}, losses)
    return Sample(held, clipping or Flat(1.0), **settings)


def dense(sample: Sample) -> Tensor:
    """The gradients of a sample's records, ``[B, d]`` float64."""
    values = sample.gradients.materialise().values()
    return torch.cat([value.double().flatten(1) for value in values], 1)


def flat(vector: dict[str, Tensor]) -> Tensor:
    """A vector by parameter name as one, ``[d]`` float64."""
    return torch.cat([value.double().flatten() for value in vector.values()])


def clipped(gradients: Tensor, clip: float) -> Tensor:
    """Each of the gradients ``[B, d]`` cut to length ``clip``, one at a time."""
    cut = [row if row.norm() <= clip else row * (clip / row.norm()) for row in gradients]
    return torch.stack(cut)


@dataclass
class Learning:
    """A model and its records.

    Attributes:
        model: The model.
        x: The records.
        y: Their labels.
    """

    model: nn.Module
    x: Tensor
    y: Tensor

    def losses(self) -> Tensor:
        return F.cross_entropy(self.model(self.x), self.y, reduction="none")

    def loss(self) -> float:
        with torch.no_grad():
            return float(self.losses().mean())

    def sample(self, clipping: Clipping | None = None, **settings: Any) -> Sample:
        return Sample.take(self.model, loss_of, (self.x, self.y), clipping or Flat(0.1), **settings)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Each record's cross entropy."""
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def network(records: int = 24, dtype: torch.dtype = torch.float64) -> Learning:
    """A small convolutional network on random images of three classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)]
        model = nn.Sequential(*layers).to(dtype)
    images = normal(records, 1, 6, 6, seed=1).to(dtype)
    return Learning(model, images, torch.arange(records) % 3)


class Logistic(nn.Linear):
    """Two classes, of which the first one's logit is zero: no direction in which nothing moves."""

    def forward(self, x: Tensor) -> Tensor:
        logit = super().forward(x)
        return torch.cat([torch.zeros_like(logit), logit], 1)


def logistic(records: int = 40, features: int = 6) -> tuple[Learning, Tensor]:
    """Logistic regression, and the dense Hessian of its mean loss in closed form, ``[d, d]``."""
    model = Logistic(features, 1).double()
    with torch.no_grad():
        model.weight.copy_(normal(1, features, seed=5))
        model.bias.fill_(0.3)
    x = normal(records, features, seed=6) * torch.linspace(0.5, 3, features, dtype=torch.float64)
    y = (normal(records, seed=7) > 0).long()
    design = torch.cat([x, torch.ones(records, 1, dtype=torch.float64)], 1)
    p = torch.sigmoid(design @ torch.cat([model.weight.detach()[0], model.bias.detach()]))
    return Learning(model, x, y), design.T @ (design * (p * (1 - p))[:, None]) / records


class Quadratic(nn.Module):
    """Losses ``(w - a_i)' H (w - a_i) / 2`` for a Hessian with given eigenvalues.

    Attributes:
        hessian: H, dense.
    """

    def __init__(self, eigenvalues: list[float], seed: int = 0) -> None:
        super().__init__()
        size = len(eigenvalues)
        basis = torch.linalg.qr(normal(size, size, seed=seed))[0]
        self.hessian = basis @ torch.diag(torch.tensor(eigenvalues).double()) @ basis.T
        self.weight = nn.Parameter(normal(size, seed=seed + 1))
        self.centres = normal(5, size, seed=seed + 2)

    def losses(self) -> Tensor:
        away = self.weight - self.centres
        return ((away @ self.hessian) * away).sum(1) / 2


def _grouped(gradients: Tensor, groups: list[int]) -> Sample:
    settings = {"groups": torch.tensor(groups), "noise_multiplier": 1.0, "expected_size": 8}
    return rows(gradients, **settings)


def _with(value: float) -> Tensor:
    gradients = normal(6, 3)
    gradients[2, 1] = value
    gradients[4] = value
    return gradients


BAD: dict[str, Callable[[], Sample]] = {
    "no records": lambda: _grouped(torch.zeros(0, 3).double(), []),
    "one record": lambda: _grouped(normal(1, 3), [0]),
    "every gradient zero": lambda: _grouped(torch.zeros(6, 3).double(), [0, 1] * 3),
    "mean gradient zero": lambda: _grouped(torch.cat([normal(3, 3), -normal(3, 3)]), [0, 1] * 3),
    "a record is NaN": lambda: _grouped(_with(math.nan), [0, 1] * 3),
    "a record is infinite": lambda: _grouped(_with(math.inf), [0, 1] * 3),
    "no record is finite": lambda: _grouped(torch.full((6, 3), math.nan).double(), [0, 1] * 3),
    "a group is not finite": lambda: _grouped(_with(math.nan), [0, 0, 1, 0, 1, 0]),
}
"""Samples about which little or nothing can be said."""


def assert_plain(result: Any) -> None:
    """The result is JSON: every number is finite, and what is undefined says so in words."""
    text = json.dumps(to_json(result), allow_nan=False)
    assert "nan" not in text.lower()
    assert 'inf"' not in text  # the word for a number that should have been Undefined


def assert_undefined(value: Any, reason: str) -> None:
    assert isinstance(value, Undefined), value
    assert reason in str(value)
