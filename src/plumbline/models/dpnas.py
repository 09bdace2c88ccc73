"""DPNASNet (Cheng et al. 2022), found by a search under DP-SGD.

As in Sharpness-Aware Training, sections 5.1 and C.1.

Three blocks of one shape, each followed by a 2 x 2 max-pool. A block is a graph: node 0 is its
input through a 1 x 1 convolution, nodes 1 to 5 are each the sum of their edges, and the output is
nodes 1 to 5 concatenated. No convolution has a bias and no group norm has parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from plumbline.models.registry import model

Edges = Mapping[tuple[int, int], str]
"""An edge between two nodes: "max" or "avg" pooling, "id", or the name of an activation."""

NODES = 5
GROUPS = 8
HEAD = 128

CIFAR: Edges = {
    (0, 1): "selu",
    (0, 2): "max", (1, 2): "selu",
    (0, 3): "tanh", (1, 3): "max",
    (0, 4): "selu", (3, 4): "id",
    (0, 5): "selu", (1, 5): "selu", (2, 5): "tanh", (3, 5): "max", (4, 5): "tanh",
}  # fmt: skip
MNIST: Edges = {
    (0, 1): "selu",
    (0, 2): "tanh", (1, 2): "id",
    (1, 3): "selu", (2, 3): "relu",
    (1, 4): "tanh", (3, 4): "id",
    (0, 5): "max", (2, 5): "max", (3, 5): "max", (4, 5): "relu",
}  # fmt: skip
FASHION: Edges = {
    (0, 1): "id",
    (1, 2): "selu",
    (0, 3): "relu", (1, 3): "selu", (2, 3): "id",
    (2, 4): "tanh", (3, 4): "id",
    (0, 5): "selu", (1, 5): "tanh", (2, 5): "max", (3, 5): "relu", (4, 5): "max",
}  # fmt: skip

_ACTIVATIONS: Mapping[str, type[nn.Module]] = {"relu": nn.ReLU, "selu": nn.SELU, "tanh": nn.Tanh}


@model("dpnas-cifar")
def cifar(*, classes: int = 10, in_channels: int = 3, size: int = 32) -> nn.Module:
    """DPNASNet-CIFAR: 529,434 parameters."""
    return DPNASNet(CIFAR, in_channels, (48, 96, 192), nn.SELU(), size, classes)


@model("dpnas-mnist")
def mnist(*, classes: int = 10, in_channels: int = 1, size: int = 28) -> nn.Module:
    """DPNASNet-MNIST: 213,418 parameters."""
    return DPNASNet(MNIST, in_channels, (32, 32, 64), nn.Tanh(), size, classes)


@model("dpnas-fashion")
def fashion(*, classes: int = 10, in_channels: int = 1, size: int = 28) -> nn.Module:
    """DPNASNet-FashionMNIST: 214,570 parameters."""
    return DPNASNet(FASHION, in_channels, (32, 32, 64), nn.Tanh(), size, classes)


class DPNASNet(nn.Sequential):
    """Stem, three blocks with max-pools, a 1 x 1 convolution to 128 channels, two linear layers.

    Args:
        edges: The graph of every block.
        in_channels: The channels of the image.
        widths: The channels of each block's nodes; the stem has as many as the first.
        activation: The activation between the two linear layers.
        size: The image's height and width.
        classes: The number of logits, ``[B, classes]``.
    """

    def __init__(
        self,
        edges: Edges,
        in_channels: int,
        widths: tuple[int, ...],
        activation: nn.Module,
        size: int,
        classes: int,
    ) -> None:
        layers: list[nn.Module] = [_convolution(in_channels, widths[0], 3)]
        channels = widths[0]
        for width in widths:
            layers += [SearchedBlock(edges, channels, width), nn.MaxPool2d(2)]
            channels, size = NODES * width, size // 2
        super().__init__(
            *layers,
            _convolution(channels, HEAD, 1),
            nn.Flatten(),
            nn.Linear(HEAD * size * size, HEAD),
            activation,
            nn.Linear(HEAD, classes),
        )


class SearchedBlock(nn.Module):
    """One block of the graph ``edges``, from ``in_channels`` to five times ``channels``."""

    def __init__(self, edges: Edges, in_channels: int, channels: int) -> None:
        super().__init__()
        self.enter = _convolution(in_channels, channels, 1)
        self.edges = nn.ModuleDict({_name(*e): _operation(edges[e], channels) for e in edges})

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_channels, H, W]`` to ``[B, 5 channels, H, W]``."""
        nodes = [self.enter(x)]
        for end in range(1, NODES + 1):
            ways = [
                self.edges[name](nodes[start])
                for start in range(end)
                if (name := _name(start, end)) in self.edges
            ]
            nodes.append(sum(ways[1:], start=ways[0]))
        return torch.cat(nodes[1:], 1)


def _name(start: int, end: int) -> str:
    return f"{start}-{end}"


def _operation(name: str, channels: int) -> nn.Module:
    if name == "max":
        return nn.MaxPool2d(3, stride=1, padding=1)
    if name == "avg":
        return nn.AvgPool2d(3, stride=1, padding=1)
    if name == "id":
        return nn.Identity()
    depthwise = _convolution(channels, channels, 3, groups=channels)
    return depthwise.append(_ACTIVATIONS[name]())


def _convolution(channels_in: int, channels: int, kernel: int, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps height and width, and a group norm, both bias-free."""
    layer = nn.Conv2d(channels_in, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    # As released: the fan-out counts every channel, even for depthwise convolutions. The norms undo
    # the scale of the weights, but the gradient, which is clipped, is inverse to it.
    nn.init.normal_(layer.weight, std=(2 / (kernel**2 * channels)) ** 0.5)
    return nn.Sequential(layer, nn.GroupNorm(GROUPS, channels, affine=False))
