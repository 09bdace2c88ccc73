"""ResNet-8, 20, 32 and 44 for CIFAR (He et al. 2016), with Clipping Bias Reduction's norms.

Section 5.1 of the paper: with BatchNorm merely replaced by GroupNorm, the *original* network trains
badly under clipping. The *enhanced* one has norms after the activations, ELU, standardised weights
and standardised features. Each of these is a flag, so that an ablation only sets flags:
``build("resnet-20", elu=False)`` is the enhanced network without ELU,
``build("resnet-20", enhanced=False, elu=True)`` the original one with it.

| depth | enhanced | original |
| --- | --- | --- |
| 8 | 76,730 | 75,290 |
| 20 | 270,266 | 269,722 |
| 32 | 463,802 | 464,154 |
| 44 | 657,338 | 658,586 |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from plumbline.models.registry import model
from plumbline.models.standardisation import WeightStandardisation, parametrised, standardise
from plumbline.registry import check_options

GROUPS = 4
WIDTHS = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """The flags; the defaults are the enhanced network's.

    Attributes:
        norm_after_activation: Convolution, activation, norm, and a further norm after each
            addition; otherwise convolution, norm, activation.
        elu: ELU instead of ReLU.
        weight_standardisation: Standardise the weights of every convolution.
        feature_standardisation: Standardise the features of each record before the linear layer.
        pool: Average-pool these features to ``pool x pool``: 2 gives 256 features, 1 gives 64.
        affine: The norms have a scale and a shift.
        batch_norm: BatchNorm instead of GroupNorm(4). It mixes the records of a batch: only for
            ``methods.batch_clipping`` and ``methods.group_batchnorm``.
    """

    norm_after_activation: bool = True
    elu: bool = True
    weight_standardisation: bool = True
    feature_standardisation: bool = True
    pool: int = 2
    affine: bool = False
    batch_norm: bool = False


ENHANCED = Normalisation()
ORIGINAL = Normalisation(
    norm_after_activation=False,
    elu=False,
    weight_standardisation=False,
    feature_standardisation=False,
    pool=1,
    affine=True,
)


@model("resnet-8")
def resnet_8(
    *, classes: int = 10, in_channels: int = 3, enhanced: bool = True, **flags: Any
) -> nn.Module:
    """76,730 parameters, 75,290 as the original; ``flags`` are those of ``Normalisation``."""
    return _network(8, classes, in_channels, enhanced, flags)


@model("resnet-20")
def resnet_20(
    *, classes: int = 10, in_channels: int = 3, enhanced: bool = True, **flags: Any
) -> nn.Module:
    """270,266 parameters, 269,722 as the original; ``flags`` are those of ``Normalisation``."""
    return _network(20, classes, in_channels, enhanced, flags)


@model("resnet-32")
def resnet_32(
    *, classes: int = 10, in_channels: int = 3, enhanced: bool = True, **flags: Any
) -> nn.Module:
    """463,802 parameters, 464,154 as the original; ``flags`` are those of ``Normalisation``."""
    return _network(32, classes, in_channels, enhanced, flags)


@model("resnet-44")
def resnet_44(
    *, classes: int = 10, in_channels: int = 3, enhanced: bool = True, **flags: Any
) -> nn.Module:
    """657,338 parameters, 658,586 as the original; ``flags`` are those of ``Normalisation``."""
    return _network(44, classes, in_channels, enhanced, flags)


@model("resnet-20-bn")
def resnet_20_batch_norm(
    *, classes: int = 10, in_channels: int = 3, enhanced: bool = False, **flags: Any
) -> nn.Module:
    """The original ResNet-20 with BatchNorm, for BatchClipping (Alg. 3): 269,722 parameters.

    It mixes records, so only methods that normalise a record by itself or with public ones accept
    it.
    """
    return _network(20, classes, in_channels, enhanced, {"batch_norm": True, **flags})


def _network(
    depth: int, classes: int, in_channels: int, enhanced: bool, flags: dict[str, Any]
) -> nn.Module:
    check_options(f"The network 'resnet-{depth}'", Normalisation, flags)
    return ResNet(depth, classes, in_channels, replace(ENHANCED if enhanced else ORIGINAL, **flags))


class ResNet(nn.Module):
    """A stem, three stages of ``(depth - 2) / 6`` blocks, pooled features, a linear layer."""

    def __init__(
        self, depth: int, classes: int, in_channels: int, normalisation: Normalisation
    ) -> None:
        super().__init__()
        self.normalisation = normalisation
        channels = WIDTHS[0]
        self.stem = nn.Sequential(
            _convolution(in_channels, channels, 1, normalisation),
            *_activated(channels, normalisation),
        )
        blocks: list[nn.Module] = []
        for stage, width in enumerate(WIDTHS):
            for block in range((depth - 2) // 6):
                stride = 2 if stage and not block else 1
                blocks.append(CifarBlock(channels, width, stride, normalisation))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels * normalisation.pool**2, classes)
        nn.init.kaiming_normal_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_channels, H, W]`` to logits ``[B, classes]``."""
        x = self.blocks(self.stem(x))
        features = F.adaptive_avg_pool2d(x, self.normalisation.pool).flatten(1)
        if self.normalisation.feature_standardisation:
            features = standardise(features)
        logits: Tensor = self.head(features)
        return logits


class CifarBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut without parameters ("option A")."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, normalisation: Normalisation
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(in_channels, channels, stride, normalisation),
            *_activated(channels, normalisation),
            _convolution(channels, channels, 1, normalisation),
            _norm(channels, normalisation),
        )
        after = normalisation.norm_after_activation
        end = _activated(channels, normalisation) if after else [_activation(normalisation)]
        self.end = nn.Sequential(*end)
        self.stride = stride
        self.padding = (channels - in_channels) // 2

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_channels, H, W]`` to ``[B, channels, H / stride, W / stride]``."""
        out = self.residual(x)
        if self.padding:  # every other row and column, between channels of zeros
            x = x[:, :, :: self.stride, :: self.stride]
            x = F.pad(x, (0, 0, 0, 0, self.padding, self.padding))
        ended: Tensor = self.end(out + x)
        return ended


def _activated(channels: int, normalisation: Normalisation) -> list[nn.Module]:
    """Activation and norm, in the order of the flags."""
    pair = [_norm(channels, normalisation), _activation(normalisation)]
    return pair[::-1] if normalisation.norm_after_activation else pair


def _activation(normalisation: Normalisation) -> nn.Module:
    return nn.ELU() if normalisation.elu else nn.ReLU()


def _norm(channels: int, normalisation: Normalisation) -> nn.Module:
    affine = normalisation.affine
    if normalisation.batch_norm:
        # No running statistics: BatchClipping never fills them, and predicts with companions.
        return nn.BatchNorm2d(channels, affine=affine, track_running_stats=False)
    return nn.GroupNorm(GROUPS, channels, affine=affine)


def _convolution(
    channels_in: int, channels: int, stride: int, normalisation: Normalisation
) -> nn.Conv2d:
    layer = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight)
    if normalisation.weight_standardisation:
        parametrised(layer, WeightStandardisation())
    return layer
