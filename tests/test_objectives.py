"""Losses and optimizers by name and by reference: one loss per record."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from plumbline.objectives import LOSSES, OPTIMIZERS, find_loss, find_optimizer
from plumbline.registry import UnknownPart

CLASSES = torch.tensor([0, 1, 1])
LOGITS = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])


def test_the_losses_by_hand() -> None:
    assert set(LOSSES) == {"cross_entropy", "binary_cross_entropy", "mse"}
    right = LOGITS.log_softmax(1)[torch.arange(3), CLASSES]
    torch.testing.assert_close(find_loss("cross_entropy")(LOGITS, CLASSES), -right)
    one = LOGITS[:, :1]
    signs = 2 * CLASSES - 1
    expected = torch.log1p(torch.exp(-signs * one[:, 0]))
    for output in (one, one[:, 0]):
        torch.testing.assert_close(find_loss("binary-cross-entropy")(output, CLASSES), expected)
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    torch.testing.assert_close(find_loss("mse")(LOGITS, CLASSES), (LOGITS - rows).square().mean(1))
    torch.testing.assert_close(find_loss("mse")(LOGITS, rows), (LOGITS - rows).square().mean(1))
    numbers = torch.tensor([0.5, 1.5, 2.5])
    torch.testing.assert_close(find_loss("mse")(one, numbers), (one[:, 0] - numbers).square())


@pytest.mark.usefixtures("outside")
def test_losses_from_outside() -> None:
    assert find_loss("outside_parts.losses:focal")(LOGITS, CLASSES).shape == (3,)
    assert "focal" in LOSSES
    found = find_loss("torch.nn:SmoothL1Loss")
    assert isinstance(found, nn.SmoothL1Loss)
    assert found.reduction == "none"
    with pytest.raises(UnknownPart, match="Did you mean 'cross_entropy'"):
        find_loss("cross_entopy")
    with pytest.raises(UnknownPart, match=r"type float\. Name a function of output and target"):
        find_loss("outside_parts.rules:NOT_A_PART")


@pytest.mark.usefixtures("outside")
def test_optimizers() -> None:
    assert set(OPTIMIZERS) == {"sgd", "adam", "adamw", "nadam"}
    assert find_optimizer("nadam") is torch.optim.NAdam
    assert find_optimizer("torch.optim:RMSprop") is torch.optim.RMSprop
    slow = find_optimizer("outside_parts.losses:SlowSgd")
    assert isinstance(slow(nn.Linear(1, 1).parameters(), lr=0.1), torch.optim.SGD)
    assert find_optimizer("slowsgd") is slow
    with pytest.raises(UnknownPart, match="no optimizer 'agd'"):
        find_optimizer("agd")
