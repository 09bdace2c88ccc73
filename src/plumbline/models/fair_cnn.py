"""The convolutional network of Gradient Misalignment, section 6.1: 32 and 16 channels, tanh."""

from __future__ import annotations

from torch import nn

from plumbline.models.registry import model


@model("fair-cnn-celeba")
def celeba(*, classes: int = 2, in_channels: int = 3, size: int = 64) -> nn.Module:
    """For CelebA at 64 x 64: 120,722 parameters, as in the paper (appendix B.3)."""
    return _network(classes, in_channels, size)


@model("fair-cnn-mnist")
def mnist(*, classes: int = 10, in_channels: int = 1, size: int = 28) -> nn.Module:
    """For MNIST: 97,114 parameters; the paper's description cannot give its 80,522."""
    return _network(classes, in_channels, size)


def _network(classes: int, in_channels: int, size: int) -> nn.Module:
    """``[B, in_channels, size, size]`` to logits ``[B, classes]``."""
    left = size - 4  # two valid 3 x 3 convolutions
    return nn.Sequential(
        nn.Conv2d(in_channels, 32, 3),
        nn.Tanh(),
        nn.Conv2d(32, 16, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * left * left, classes),
    )
