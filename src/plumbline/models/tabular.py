"""The networks of paper 004, section 6.1, for tables: an MLP for Adult, one layer for Dutch.

Also a linear model on Adult with steps (``data.load("adult", scaling="steps")``), which is better.
"""

from __future__ import annotations

from torch import nn

from plumbline.models.registry import model


@model("adult-mlp")
def adult_mlp(*, features: int = 98, hidden: int = 256, classes: int = 2) -> nn.Module:
    """98-256-256-2 with tanh, ``[B, features]`` to logits: 91,650 parameters (appendix B.3)."""
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.Tanh(),
        nn.Linear(hidden, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )


@model("adult-linear")
def adult_linear(*, features: int = 150, classes: int = 2) -> nn.Module:
    """150-2, ``[B, features]`` to logits: 302 parameters."""
    return nn.Linear(features, classes)


@model("dutch-linear")
def dutch_linear(*, features: int = 59, classes: int = 2) -> nn.Module:
    """59-2 with a sigmoid on each output, ``[B, features]`` to ``[B, classes]``: 120 parameters.

    As released: the sigmoids come *before* cross-entropy, which treats the two numbers in (0, 1) as
    logits. So no probability can leave (0.27, 0.73), and no loss can fall below 0.31; the paper's
    results are those of this model.
    """
    return nn.Sequential(nn.Linear(features, classes), nn.Sigmoid())
