"""The four networks of the benchmark and their synthetic batches.

Each stands for a regime of per-sample gradients: small dense layers with a large batch (MLP), few
wide convolutions (CNN), many narrow convolutions with norms (ResNet-20), and sequences with a
large embedding (transformer). Data are random: the cost of a step does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 8_000
LENGTH = 128
WIDTH = 128
HEADS = 4
GROUPS = 4  # of every GroupNorm in the ResNet


@dataclass(frozen=True)
class Workload:
    """One network, how many records a step takes, and how to draw them."""

    name: str
    title: str
    network: Callable[[], nn.Module]
    batch_size: int
    inputs: Callable[[int, torch.Generator], Tensor]
    classes: int

    def model(self) -> nn.Module:
        """The network in training mode, with the same weights on every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.network().train()

    def batch(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        """`size` records (the workload's batch by default) and their labels `[B]`."""
        size = self.batch_size if size is None else size
        generator = torch.Generator().manual_seed(1)
        labels = torch.randint(self.classes, (size,), generator=generator)
        return self.inputs(size, generator), labels


def mlp() -> nn.Module:
    """96-256-256-2 with tanh, the shape of the Adult experiments."""
    return nn.Sequential(
        nn.Linear(96, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2)
    )


def cnn() -> nn.Module:
    """Two valid 3x3 convolutions (1 -> 32 -> 16), each with tanh and a 2x2 max-pool."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 16, 3),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 10),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with norms around a parameter-free ("option A") shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.stride = stride
        self.extra = channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C_in, H, W]` to `[B, C, H / stride, W / stride]`."""
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.extra:
            half = self.extra // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return F.relu(out + x)


class ResNet20(nn.Module):
    """The CIFAR ResNet-20 of He et al. (2015) with affine group norms: 269,722 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(GROUPS, 16)
        shapes = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2
        shapes += [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.blocks = nn.Sequential(*(BasicBlock(*shape) for shape in shapes))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, 3, 32, 32]` to logits `[B, 10]`."""
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """Two post-norm encoder layers over a word embedding, mean-pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, HEADS, 512, dropout=0.0, batch_first=True)
                for _ in range(2)
            )
        )
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens `[B, T]` to logits `[B, 2]`."""
        return self.head(self.layers(self.embedding(tokens)).mean(1))


def _gaussian(*shape: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda size, generator: torch.randn(size, *shape, generator=generator)


def _words(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(VOCABULARY, (size, LENGTH), generator=generator)


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("mlp", "MLP", mlp, 1024, _gaussian(96), 2),
        Workload("cnn", "CNN", cnn, 256, _gaussian(1, 28, 28), 10),
        Workload("resnet", "ResNet-20", ResNet20, 128, _gaussian(3, 32, 32), 10),
        Workload("transformer", "transformer", Transformer, 64, _words, 2),
    )
}
