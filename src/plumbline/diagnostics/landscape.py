"""The loss around and between models (Sharpness-Aware Training, Figs. 5, 9 and 11).

Random planes are filter-normalised (Li et al., 2018): each filter of a direction has the norm of
the model's own filter, so that planes of different models can be compared. Weights are as before
when a function returns, also by an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plumbline.diagnostics.base import finite_or
from plumbline.results import Number

Loss = Callable[[], float]
"""Evaluates the model's mean loss, at the weights as they are."""

_NOT_FINITE = "the loss is not finite"


@dataclass(frozen=True)
class Landscape:
    """The loss on a plane through the weights.

    Attributes:
        steps: The coordinates along both axes; zero is the model itself.
        losses: ``losses[i][j]`` at ``steps[i]`` along one axis and ``steps[j]`` along the other.
    """

    steps: list[float]
    losses: list[list[Number]]


def landscape(
    model: nn.Module,
    loss: Loss,
    generator: torch.Generator,
    *,
    reach: float = 1.0,
    points: int = 11,
) -> Landscape:
    """The loss on a random plane, up to ``reach`` times the weights' own size in each direction."""
    first, second = (filter_normalised(model, generator) for _ in range(2))
    # Not linspace, which may miss zero by a rounding: the centre is the model itself.
    middle = (points - 1) / 2
    steps = [reach * ((place - middle) / (middle or 1)) for place in range(points)]
    losses: list[list[Number]] = []
    for along in steps:
        row: list[Number] = []
        for across in steps:
            offset = {name: along * first[name] + across * second[name] for name in first}
            with moved(model, offset):
                row.append(finite_or(loss(), _NOT_FINITE))
        losses.append(row)
    return Landscape(steps, losses)


def interpolation(
    model: nn.Module, other: Mapping[str, Tensor], loss: Loss, positions: Sequence[float]
) -> list[Number]:
    """The loss at ``(1 - a) w + a w'`` for each position a, from ``model`` to ``other``."""
    ends = {
        name: (value.detach().clone(), other[name].to(value))
        for name, value in model.named_parameters()
    }
    losses: list[Number] = []
    for position in positions:
        # Unlike w + a (w' - w), lerp is exact at both ends.
        with placed(model, {name: torch.lerp(*pair, position) for name, pair in ends.items()}):
            losses.append(finite_or(loss(), _NOT_FINITE))
    return losses


def filter_normalised(model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """A random direction, every filter as long as the model's; zero for biases and scales."""
    direction = {}
    for name, value in model.named_parameters():
        random = torch.randn(value.shape, generator=generator).to(value)
        if value.dim() < 2:
            direction[name] = torch.zeros_like(value.detach())
            continue
        rows, own = random.flatten(1), value.detach().flatten(1)
        scale = own.norm(dim=1, keepdim=True) / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)
        direction[name] = (rows * scale).view_as(value)
    return direction


def moved(model: nn.Module, offset: Mapping[str, Tensor]) -> AbstractContextManager[None]:
    """The model with its weights moved by ``offset``, and put back exactly."""
    named = dict(model.named_parameters())
    return placed(model, {name: named[name].detach() + value for name, value in offset.items()})


@contextmanager
def placed(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other weights, and its own put back exactly.

    The weights are exchanged, not written to, so that a graph kept elsewhere (``Hessian``) stays
    valid; it must not be used meanwhile.
    """
    named = dict(model.named_parameters())
    before = {name: named[name].data for name in weights}
    try:
        for name, value in weights.items():
            named[name].data = value
        yield
    finally:
        for name, value in before.items():
            named[name].data = value
