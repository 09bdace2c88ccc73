"""Models on scattering features: a linear model, and the CNNs of Tramer and Boneh (2021).

All begin by normalising the features, in one of two ways that keep the guarantee: group by group
within each record, which involves no other record; or with a mean and variance for every channel
that were released privately (``plumbline.training.moments.private_moments``) and are accounted for.
The linear model can also subtract a privately released mean (``private_mean``): what all records
have in common makes every gradient longer without telling classes apart.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from plumbline.models.registry import model

Normalise = int | tuple[Tensor, Tensor] | None
"""A number of groups; or a (mean, variance) of each channel, ``[C]`` each; or None."""


class Standardise(nn.Module):
    """``(x - mean) / sqrt(variance)``, channel by channel, with constants that are not trained.

    Args:
        mean: The mean of each channel, ``[C]``.
        variance: The variance of each channel, ``[C]``; positive.
    """

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        super().__init__()
        if mean.dim() != 1 or mean.shape != variance.shape or not bool((variance > 0).all()):
            raise ValueError(
                f"The mean has the shape {tuple(mean.shape)} and the variance "
                f"{tuple(variance.shape)}; give one number for each channel, [C], and positive "
                "variances."
            )
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("variance", variance.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """``[B, C, ...]`` to the same shape."""
        by_channel = (-1, *[1] * (x.dim() - 2))
        mean, variance = self.get_buffer("mean"), self.get_buffer("variance")
        return (x - mean.view(by_channel)) * variance.view(by_channel).rsqrt()


class Centre(nn.Module):
    """``x - mean``, with a mean that is not trained; zero until it is set.

    Args:
        shape: The shape of a record's features.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(shape))

    @property
    def bound(self) -> float:
        """The largest L2 norm of features that were normalised group by group."""
        return math.sqrt(self.mean.numel())

    def forward(self, x: Tensor) -> Tensor:
        """``[B, *shape]`` to the same shape."""
        return x - self.mean


@model("scattering-linear")
def linear(
    *,
    classes: int = 10,
    in_channels: int = 81,
    size: int = 7,
    normalise: Normalise = 27,
    centred: bool = False,
) -> nn.Module:
    """A linear model on features ``[B, in_channels, size, size]``: 39,700 parameters."""
    return nn.Sequential(
        _normaliser(in_channels, normalise),
        *([Centre(in_channels, size, size)] if centred else []),
        nn.Flatten(),
        nn.Linear(in_channels * size * size, classes),
    )


@model("scattering-cnn-mnist")
def cnn_mnist(
    *, classes: int = 10, in_channels: int = 81, size: int = 7, normalise: Normalise = 27
) -> nn.Module:
    """The CNN for features of 28 x 28 images, ``[B, 81, 7, 7]``: 33,066 parameters.

    3 x 3 convolutions 81->16 (stride 2) and 16->32, then 32 hidden units, tanh throughout.
    """
    left = (size + 1) // 2
    return nn.Sequential(
        _normaliser(in_channels, normalise),
        nn.Conv2d(in_channels, 16, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * left * left, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


@model("scattering-cnn-cifar")
def cnn_cifar(
    *, classes: int = 10, in_channels: int = 243, size: int = 8, normalise: Normalise = 27
) -> nn.Module:
    """The CNN for features of 32 x 32 colour images, ``[B, 243, 8, 8]``: 187,210 parameters.

    3 x 3 convolutions 243->64 and 64->64 with tanh, a 2 x 2 max-pool between them.
    """
    left = size // 2
    return nn.Sequential(
        _normaliser(in_channels, normalise),
        nn.Conv2d(in_channels, 64, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * left * left, classes),
    )


def _normaliser(channels: int, normalise: Normalise) -> nn.Module:
    if normalise is None:
        return nn.Identity()
    if isinstance(normalise, tuple):
        standardise = Standardise(*(torch.as_tensor(one) for one in normalise))
        if len(standardise.get_buffer("mean")) != channels:
            raise ValueError(
                f"The mean and variance have {len(standardise.get_buffer('mean'))} channels, but "
                f"the features have {channels}. Use those of the same features."
            )
        return standardise
    if isinstance(normalise, bool) or not isinstance(normalise, int) or normalise < 1:
        raise ValueError(
            f"normalise is {normalise!r}; give a number of groups, a (mean, variance), or None."
        )
    if channels % normalise:
        raise ValueError(
            f"{channels} channels cannot be divided into {normalise} groups. Give a number that "
            f"divides {channels}, such as {channels // 3 if channels % 3 == 0 else channels}."
        )
    return nn.GroupNorm(normalise, channels, affine=False)
