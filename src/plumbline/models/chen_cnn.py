"""The two networks of Geometric Perspective, section 4.

The paper gives layers and widths; the strides and paddings of the first network are those of the
DP-SGD tutorial it starts from (TensorFlow Privacy), with the padding that leaves 512 features.
"""

from __future__ import annotations

from torch import nn

from plumbline.models.registry import model


@model("chen-mnist")
def chen_mnist(*, classes: int = 10, in_channels: int = 1) -> nn.Module:
    """16 8 x 8 and 32 4 x 4 kernels of stride 2, 32 hidden units, ReLU: 26,010 parameters.

    A 2 x 2 max-pool of stride 1 follows each; ``[B, in_channels, 28, 28]`` to ``[B, classes]``.
    """
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 8, stride=2, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


@model("chen-cifar")
def chen_cifar(
    *, classes: int = 10, in_channels: int = 3, size: int = 32, dropout: float = 0.5
) -> nn.Module:
    """32 and 64 3 x 3 kernels, 1,500 hidden units, ReLU: 6,179,902 parameters.

    A 2 x 2 max-pool follows each convolution, and dropout each hidden layer;
    ``[B, in_channels, size, size]`` to logits ``[B, classes]``.
    """
    left = size // 4
    return nn.Sequential(
        nn.Conv2d(in_channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(64 * left * left, 1500),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(1500, classes),
    )
