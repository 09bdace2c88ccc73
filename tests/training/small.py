"""A small problem that trains in milliseconds, and a literal private step to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients.summation import ROUNDING
from plumbline.mechanism.noise import gaussian

RECORDS = 40
LOSS = nn.CrossEntropyLoss(reduction="none")


def data(records: int = RECORDS, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 6, generator=generator)
    return x, (x[:, 0] > 0).long()


def network(seed: int = 2) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def budget(**changes: Any) -> pl.Budget:
    settings: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 4,
        "expected_batch_size": 10,
    }
    return pl.Budget(**{**settings, **changes})


def private(
    model: nn.Module | None = None,
    dataset: Any = None,
    *,
    plan: pl.Budget | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    lr: float = 0.5,
    **settings: Any,
) -> pl.Private:
    model = network() if model is None else model
    settings = {
        "loss": LOSS,
        "method": pl.methods.dpsgd(clip=0.5),
        "seed": 7,
        "deterministic": True,
        **settings,
    }
    return pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=lr) if optimizer is None else optimizer,
        data() if dataset is None else dataset,
        budget=budget() if plan is None else plan,
        **settings,
    )


def run(private: pl.Private, steps: int | None = None) -> list[Tensor]:
    """Makes some steps, or all; returns the indices of the batches."""
    seen: list[Tensor] = []
    for batch in private:
        if len(seen) == steps:
            break
        seen.append(batch.indices)
        private.step(batch)
    private.close()
    return seen


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradient_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the summed losses, flat."""
    losses = LOSS(model(x), y)
    found = torch.autograd.grad(losses.sum(), list(model.parameters()))
    return torch.cat([part.flatten() for part in found])


def clipped_sum(
    model: nn.Module, dataset: tuple[Tensor, Tensor], groups: Sequence[Tensor], clip: float
) -> Tensor:
    """One unit after the other: gradient of its records, clipped to ``clip``; summed."""
    x, y = dataset
    total = torch.zeros_like(weights(model))
    for group in groups:
        gradient = gradient_of(model, x[group], y[group])
        total += gradient * min(1.0, clip / float(gradient.norm()))
    return total


def noise_of(private: pl.Private, step: int) -> Tensor:
    """The noise of a step of a seeded run, in units of sigma times the sensitivity.

    It is standard Gaussian, and larger by what is charged for the rounding of the sum.
    """
    numel = len(weights(private.model))
    return (1 + ROUNDING) * gaussian(private._source.stream("noise", step), numel)
