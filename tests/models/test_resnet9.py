"""The ResNet-9 of paper 000: its weights are centred, and additions may be normed."""

import torch
from torch import nn

from plumbline.models import build
from plumbline.models.resnet9 import Residual


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def test_channels_are_centred_unless_told_otherwise() -> None:
    for layer in convolutions(build("resnet-9")):
        # Sums of up to 2,304 weights of about 0.02, in float32.
        assert layer.weight.sum((1, 2, 3)).abs().max() < 1e-5
    for layer in convolutions(build("resnet-9", weight_centring=False)):
        assert layer.weight.sum((1, 2, 3)).abs().max() > 1e-2


def test_layers() -> None:
    shapes = [tuple(layer.weight.shape[:2]) for layer in convolutions(build("resnet-9"))]
    assert shapes == [
        (64, 3), (128, 64), (128, 128), (128, 128),
        (256, 128), (256, 256), (256, 256), (256, 256),
    ]  # fmt: skip


def test_the_extra_norm_comes_after_the_addition() -> None:
    x = torch.randn(2, 128, 3, 3)
    plain, extra = (build("resnet-9", extra_norm=flag)[3] for flag in (False, True))
    assert isinstance(plain, Residual)
    assert isinstance(extra, Residual)
    extra.units.load_state_dict(plain.units.state_dict())
    torch.testing.assert_close(plain(x), x + plain.units(x))
    torch.testing.assert_close(extra(x), nn.functional.group_norm(plain(x), 32))
