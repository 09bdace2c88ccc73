"""Networks for tables: an MLP, a linear model, and those of Gradient Misalignment, section 6.1."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from plumbline.checks import check_count
from plumbline.models.registry import model


@model("mlp")
def mlp(*, features: int, classes: int, hidden: int | Sequence[int] = 64) -> nn.Module:
    """Hidden layers with tanh, ``[B, features]`` to logits ``[B, classes]``.

    Args:
        features: How many numbers a record has.
        classes: How many classes there are.
        hidden: The sizes of the hidden layers; one number for two of that size.
    """
    sizes = [features, *((hidden, hidden) if isinstance(hidden, int) else hidden)]
    for size in sizes[1:]:
        check_count("the size of a hidden layer", size)
    layers = [
        layer
        for before, after in itertools.pairwise(sizes)
        for layer in (nn.Linear(before, after), nn.Tanh())
    ]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


@model("linear")
def linear(*, features: int, classes: int) -> nn.Module:
    """One layer, ``[B, features]`` to logits ``[B, classes]``."""
    return nn.Linear(features, classes)


@model("adult-mlp")
def adult_mlp(*, features: int = 98, hidden: int = 256, classes: int = 2) -> nn.Module:
    """98-256-256-2 with tanh, ``[B, features]`` to logits: 91,650 parameters (appendix B.3)."""
    return mlp(features=features, hidden=hidden, classes=classes)


@model("dutch-linear")
def dutch_linear(*, features: int = 59, classes: int = 2) -> nn.Module:
    """59-2 with a sigmoid on each output, ``[B, features]`` to ``[B, classes]``: 120 parameters.

    As released: the sigmoids come *before* cross-entropy, which treats the two numbers in (0, 1) as
    logits. So no probability can leave (0.27, 0.73), and no loss can fall below 0.31; the paper's
    results are those of this model.
    """
    return nn.Sequential(nn.Linear(features, classes), nn.Sigmoid())
