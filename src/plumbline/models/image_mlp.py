"""A network for images that is small enough to train for as many steps as a paper does."""

from __future__ import annotations

from torch import nn

from plumbline.models.registry import model
from plumbline.models.tabular import mlp


@model("image-mlp")
def image_mlp(
    *, classes: int = 10, in_channels: int = 1, size: int = 28, hidden: int = 100
) -> nn.Module:
    """One hidden layer with tanh on all pixels: 79,510 parameters unless told otherwise.

    ``[B, in_channels, size, size]`` to logits ``[B, classes]``.
    """
    features = in_channels * size * size
    return nn.Sequential(nn.Flatten(), mlp(features=features, classes=classes, hidden=(hidden,)))
