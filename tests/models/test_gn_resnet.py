"""GNResNet-10: strides, shortcuts and norms."""

import torch
from torch import nn

from plumbline.models import build
from plumbline.models.gn_resnet import GnBlock


def test_blocks() -> None:
    model = build("gn-resnet-10")
    blocks = [module for module in model if isinstance(module, GnBlock)]
    x = model[:3](torch.randn(1, 1, 16, 16))
    shapes = [tuple((x := block(x)).shape[1:]) for block in blocks]
    assert shapes == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]
    assert [isinstance(block.shortcut, nn.Identity) for block in blocks] == [
        True, False, False, False,
    ]  # fmt: skip


def test_norms() -> None:
    norms = [m for m in build("gn-resnet-10").modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 1 + 4 * 2 + 3
    assert all(norm.num_groups == 32 and norm.affine for norm in norms)


def test_a_block_adds_and_then_activates() -> None:
    block = GnBlock(64, 64, stride=1)
    x = torch.randn(2, 64, 4, 4)
    torch.testing.assert_close(block(x), torch.relu(block.residual(x) + x))
