"""Standardised vectors, and weights that are standardised or centred before use.

The weights are parametrisations (``torch.nn.utils.parametrize``): the layer keeps its free weight
as a parameter, ``parametrizations.weight.original``, and computes with a function of it. That
function involves no records, so each record still has its own gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

_EPSILON = 1e-6


def standardise(vectors: Tensor) -> Tensor:
    """Each vector of the last dimension with mean 0 and (unbiased) standard deviation 1.

    As in the released code of Clipping Bias Reduction (section 5.1). The epsilon, 1e-6, is added to
    the deviation and also applies to the gates of its GRU, where the released code has none: a
    vector of equal coordinates becomes zero instead of NaN.
    """
    mean = vectors.mean(-1, keepdim=True)
    return (vectors - mean) / (vectors.std(-1, keepdim=True) + _EPSILON)


class WeightStandardisation(nn.Module):
    """``(w - mean) / (std + 1e-6) / sqrt(fan_in)`` (Qiao et al. 2019).

    Clipping Bias Reduction, section 5.1.

    Mean and (unbiased) deviation are those of one output channel, so its weights have a sum of zero
    and a norm of almost one.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """``[C, ...]`` to the same shape."""
        rows = weight.flatten(1)
        return (standardise(rows) / math.sqrt(rows.shape[1])).view_as(weight)


class ScaledWeightStandardisation(nn.Module):
    """With a learned gain: ``gain (w - mean) / sqrt(max(var fan_in, 1e-4))``.

    The convolution of the WRN-16-4 of De et al. (2022), after Brock et al. (2021); the variance is
    the biased one. The gain, one per output channel, starts at one.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))

    def forward(self, weight: Tensor) -> Tensor:
        """``[C, ...]`` to the same shape."""
        rows = weight.flatten(1)
        variance, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
        scale = self.gain[:, None] * (variance * rows.shape[1]).clamp(min=1e-4).rsqrt()
        return ((rows - mean) * scale).view_as(weight)


class WeightCentring(nn.Module):
    """``w - mean`` over an output channel's weights, for Bias-Aware Minimisation's ResNet-9."""

    def forward(self, weight: Tensor) -> Tensor:
        """``[C, ...]`` to the same shape."""
        rows = weight.flatten(1)
        return (rows - rows.mean(1, keepdim=True)).view_as(weight)


def parametrised(layer: nn.Conv2d, by: nn.Module) -> nn.Conv2d:
    """The layer, whose weight from now on is ``by`` applied to a free weight."""
    register_parametrization(layer, "weight", by)
    return layer
