"""The networks of the papers as one table: what each must be, and how it is tried out cheaply."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plumbline.models import build


@dataclass(frozen=True)
class Network:
    """A network by name.

    Attributes:
        name: For ``build``.
        count: Its trainable parameters, as ``methods.md`` part E gives them.
        shape: One record's shape in the paper.
        classes: How many outputs it has.
        options: For ``build``.
        small: Options for a version that takes smaller records, beside ``options``.
        small_shape: One such record's shape; None if it is as large as in the paper.
        heavy: Whether all of its per-record gradients take seconds.
    """

    name: str
    count: int
    shape: tuple[int, ...]
    classes: int = 10
    options: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=dict)
    small_shape: tuple[int, ...] | None = None
    heavy: bool = False

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def variant(self) -> bool:
        """Whether it takes seconds and is nearly another network of the table."""
        return self.heavy and (bool(self.options) or self.name in ("resnet-32", "resnet-44"))

    def whole(self) -> nn.Module:
        """The network of the paper."""
        torch.manual_seed(0)
        return build(self.name, **self.options)

    def reduced(self) -> nn.Module:
        """The network for small records."""
        torch.manual_seed(0)
        return build(self.name, **self.options, **self.small)

    def records(self, count: int) -> Tensor:
        """Small records, ``[count, *small_shape]``."""
        return torch.randn(count, *(self.small_shape or self.shape))


ORIGINAL = {"enhanced": False}

NETWORKS = [
    Network("fair-cnn-celeba", 120_722, (3, 64, 64), 2, {}, {"size": 12}, (3, 12, 12)),
    Network("fair-cnn-mnist", 97_114, (1, 28, 28), 10, {}, {"size": 10}, (1, 10, 10)),
    Network("image-mlp", 79_510, (1, 28, 28), 10, {}, {"size": 8, "hidden": 6}, (1, 8, 8)),
    Network("adult-mlp", 91_650, (98,), 2),
    Network("linear", 302, (150,), 2, {"features": 150, "classes": 2}),
    Network("mlp", 13_954, (150,), 2, {"features": 150, "classes": 2}),
    Network("dutch-linear", 120, (59,), 2),
    Network("dpnas-cifar", 529_434, (3, 32, 32), 10, {}, {"size": 8}, (3, 8, 8)),
    Network("dpnas-mnist", 213_418, (1, 28, 28), 10, {}, {"size": 8}, (1, 8, 8)),
    Network("dpnas-fashion", 214_570, (1, 28, 28), 10, {}, {"size": 8}, (1, 8, 8)),
    Network("gn-resnet-10", 4_902_090, (1, 28, 28), small_shape=(1, 8, 8), heavy=True),
    Network("selu-cnn", 550_570, (3, 32, 32), 10, {}, {"size": 8}, (3, 8, 8)),
    Network("resnet-9", 2_447_946, (3, 32, 32), small_shape=(3, 8, 8), heavy=True),
    Network(
        "resnet-9", 2_448_714, (3, 32, 32), 10, {"extra_norm": True}, {}, (3, 8, 8), heavy=True
    ),
    Network("wrn-16-4", 2_753_818, (3, 32, 32), small_shape=(3, 4, 4), heavy=True),
    Network("resnet-8", 76_730, (3, 32, 32), small_shape=(3, 8, 8)),
    Network("resnet-8", 75_290, (3, 32, 32), 10, ORIGINAL, {}, (3, 8, 8)),
    Network("resnet-20", 270_266, (3, 32, 32), small_shape=(3, 8, 8)),
    Network("resnet-20", 269_722, (3, 32, 32), 10, ORIGINAL, {}, (3, 8, 8)),
    Network("resnet-32", 463_802, (3, 32, 32), small_shape=(3, 8, 8), heavy=True),
    Network("resnet-32", 464_154, (3, 32, 32), 10, ORIGINAL, {}, (3, 8, 8), heavy=True),
    Network("resnet-44", 657_338, (3, 32, 32), small_shape=(3, 8, 8), heavy=True),
    Network("resnet-44", 658_586, (3, 32, 32), 10, ORIGINAL, {}, (3, 8, 8), heavy=True),
    Network("imdb-gru", 32_002, (100, 100), 2, small_shape=(6, 100)),
    Network("imdb-gru", 32_002, (100, 100), 2, {"normalised": False}, {}, (6, 100)),
    Network("chen-mnist", 26_010, (1, 28, 28)),
    Network("chen-cifar", 6_179_902, (3, 32, 32), 10, {}, {"size": 8}, (3, 8, 8)),
]

BATCH_NORM = Network("resnet-20-bn", 269_722, (3, 32, 32), small_shape=(3, 8, 8))
"""The one that mixes records, by itself."""


def each(networks: list[Network], *, long: bool = False) -> pytest.MarkDecorator:
    """A test for each of the networks; in a ``long`` one, variants of the heavy ones are slow."""
    rows = [
        pytest.param(
            network, id=str(network), marks=[pytest.mark.slow] if long and network.variant else []
        )
        for network in networks
    ]
    return pytest.mark.parametrize("network", rows)
