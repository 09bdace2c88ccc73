"""The WideResNet-16-4 of De et al. (2022), as in Bias-Aware Minimisation, Table 2.

Every convolution has standardised weights with a learned gain, and a bias; ReLU comes before each
norm, and the norm before the convolution.
"""

from __future__ import annotations

from torch import Tensor, nn

from plumbline.models.registry import model
from plumbline.models.standardisation import ScaledWeightStandardisation, parametrised

GROUPS = 16


@model("wrn-16-4")
def wrn_16_4(*, classes: int = 10, in_channels: int = 3) -> nn.Module:
    """Three groups of two units, 64, 128 and 256 channels: 2,753,818 parameters for ten classes.

    Any image size; ``[B, in_channels, H, W]`` to logits ``[B, classes]``.
    """
    layers: list[nn.Module] = [_convolution(in_channels, GROUPS, 3, 1)]
    channels = GROUPS
    for stage, width in enumerate((64, 128, 256)):
        layers += [Unit(channels, width, stride=2 if stage else 1), Unit(width, width, stride=1)]
        channels = width
    return nn.Sequential(
        *layers,
        nn.ReLU(),
        nn.GroupNorm(GROUPS, channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


class Unit(nn.Module):
    """Two 3 x 3 convolutions beside a skip, a 1 x 1 convolution where the channels change."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_normed(in_channels, channels, 3, stride), *_normed(channels, channels, 3, 1)
        )
        same = in_channels == channels
        self.skip = (
            nn.Identity() if same else nn.Sequential(*_normed(in_channels, channels, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_channels, H, W]`` to ``[B, channels, H / stride, W / stride]``."""
        out: Tensor = self.residual(x) + self.skip(x)
        return out


def _normed(channels_in: int, channels: int, kernel: int, stride: int) -> list[nn.Module]:
    norm = nn.GroupNorm(GROUPS, channels_in)
    return [nn.ReLU(), norm, _convolution(channels_in, channels, kernel, stride)]


def _convolution(channels_in: int, channels: int, kernel: int, stride: int) -> nn.Conv2d:
    layer = nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2)
    nn.init.normal_(layer.weight, std=(channels_in * kernel**2) ** -0.5)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return parametrised(layer, ScaledWeightStandardisation(channels))
