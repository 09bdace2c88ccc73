"""The ResNet-9 of Bias-Aware Minimisation, with the scale norm of Klause et al. (2022).

Section 7 and Table 2.

The paper names the network, its group norms and weight standardisation, but no layers. Of the
standardisation only the centring is kept: a norm after every convolution undoes scales anyway.
"""

from __future__ import annotations

from torch import Tensor, nn

from plumbline.models.registry import model
from plumbline.models.standardisation import WeightCentring, parametrised

GROUPS = 32


@model("resnet-9")
def resnet_9(
    *,
    classes: int = 10,
    in_channels: int = 3,
    extra_norm: bool = False,
    weight_centring: bool = True,
) -> nn.Module:
    """Eight convolutions and a linear layer: 2,447,946 parameters, 2,448,714 with ``extra_norm``.

    A unit is a 3 x 3 convolution without bias, GroupNorm(32) and Mish. Images of any size from 8
    on are pooled to 2 x 2 at the end. The paper trains it with NAdam at a learning rate of 2e-3.

    Args:
        classes: The number of logits, ``[B, classes]``.
        in_channels: The channels of the image.
        extra_norm: Add a norm after each of the two additions (the scale norm).
        weight_centring: Centre the weights of every convolution's output channels.
    """

    def unit(channels_in: int, channels: int) -> nn.Sequential:
        layer = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        if weight_centring:
            parametrised(layer, WeightCentring())
        return nn.Sequential(layer, nn.GroupNorm(GROUPS, channels), nn.Mish())

    def residual(channels: int) -> nn.Module:
        norm = nn.GroupNorm(GROUPS, channels) if extra_norm else nn.Identity()
        return Residual(unit(channels, channels), unit(channels, channels), norm)

    return nn.Sequential(
        unit(in_channels, 64),
        unit(64, 128),
        nn.MaxPool2d(2),
        residual(128),
        unit(128, 256),
        nn.MaxPool2d(2),
        unit(256, 256),
        nn.MaxPool2d(2),
        residual(256),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 256, classes),
    )


class Residual(nn.Module):
    """Two units, added to their input; then a norm, or nothing."""

    def __init__(self, first: nn.Module, second: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.units = nn.Sequential(first, second)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, H, W]`` to the same shape."""
        out: Tensor = self.norm(x + self.units(x))
        return out
