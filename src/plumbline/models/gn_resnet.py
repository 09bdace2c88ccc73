"""GNResNet-10 of Sharpness-Aware Training, section 5.1: ImageNet-shaped, with group norms."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from plumbline.models.registry import model

GROUPS = 32


@model("gn-resnet-10")
def gn_resnet_10(*, classes: int = 10, in_channels: int = 1) -> nn.Module:
    """One basic block each of 64, 128, 256 and 512 channels: 4,902,090 parameters.

    A 3 x 3 stem, strides 1/2/2/2, ReLU, affine GroupNorm(32), a 1 x 1 convolution with a norm as
    the shortcut where the shape changes, and global average pooling; any image size.
    """
    widths = (64, 128, 256, 512)
    layers: list[nn.Module] = [*_convolution(in_channels, widths[0], 3, 1), nn.ReLU()]
    channels = widths[0]
    for stage, width in enumerate(widths):
        layers.append(GnBlock(channels, width, stride=2 if stage else 1))
        channels = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers, *head)


class GnBlock(nn.Module):
    """Two 3 x 3 convolutions with norms beside a shortcut (He et al. 2016)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(in_channels, channels, 3, stride),
            nn.ReLU(),
            *_convolution(channels, channels, 3, 1),
        )
        same = in_channels == channels and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(*_convolution(in_channels, channels, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_channels, H, W]`` to ``[B, channels, H / stride, W / stride]``."""
        return F.relu(self.residual(x) + self.shortcut(x))


def _convolution(channels_in: int, channels: int, kernel: int, stride: int) -> list[nn.Module]:
    padding = kernel // 2
    layer = nn.Conv2d(channels_in, channels, kernel, stride, padding=padding, bias=False)
    return [layer, nn.GroupNorm(GROUPS, channels)]
