"""CNN-Tanh of Papernot et al. (2021) with SELU, as in Sharpness-Aware Training, section 5.1."""

from __future__ import annotations

from torch import nn

from plumbline.models.registry import model


@model("selu-cnn")
def selu_cnn(*, classes: int = 10, in_channels: int = 3, size: int = 32) -> nn.Module:
    """Six 3 x 3 convolutions, a 2 x 2 max-pool after each pair, no norm: 550,570 parameters.

    32, 32, 64, 64, 128 and 128 channels with biases, then 128 hidden units;
    ``[B, in_channels, size, size]`` to logits ``[B, classes]``.
    """
    layers: list[nn.Module] = []
    channels = in_channels
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.SELU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
        size //= 2
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * size * size, 128),
        nn.SELU(),
        nn.Linear(128, classes),
    )
