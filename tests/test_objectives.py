"""Losses and optimizers by name and by reference: one loss per record."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from plumbline.objectives import LOSSES, OPTIMIZERS, Loss, build_loss
from plumbline.registry import UnknownPart


def find_loss(reference: str) -> Loss:
    return build_loss(LOSSES.find(reference), {})


CLASSES = torch.tensor([0, 1, 1])
LOGITS = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])


def test_the_losses_by_hand() -> None:
    assert set(LOSSES) == {"cross_entropy", "binary_cross_entropy", "mse", "huber"}
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
    with pytest.raises(ValueError, match="A loss is a function of output and target"):
        find_loss("outside_parts.rules:NOT_A_PART")
    focal = build_loss(LOSSES.find("torch.nn:CrossEntropyLoss"), {"label_smoothing": 0.1})
    assert focal(LOGITS, CLASSES).shape == (3,)


@pytest.mark.usefixtures("outside")
def test_optimizers() -> None:
    assert set(OPTIMIZERS) == {"sgd", "adam", "adamw", "nadam"}
    assert OPTIMIZERS.find("nadam") is torch.optim.NAdam
    assert OPTIMIZERS.find("torch.optim:RMSprop") is torch.optim.RMSprop
    slow = OPTIMIZERS.find("outside_parts.losses:SlowSgd")
    assert isinstance(slow(nn.Linear(1, 1).parameters(), lr=0.1), torch.optim.SGD)
    assert OPTIMIZERS.find("slowsgd") is slow
    with pytest.raises(UnknownPart, match="no optimizer 'agd'"):
        OPTIMIZERS.find("agd")


def test_huber_is_the_squared_error_near_by_and_grows_as_the_absolute_one_beyond() -> None:
    loss = build_loss(LOSSES["huber"], {"delta": 0.5})
    errors = torch.tensor([0.0, 0.3, -0.5, 2.0, -4.0])
    found = loss(errors[:, None], torch.zeros(5))
    twice = 2 * torch.nn.functional.huber_loss(errors, torch.zeros(5), reduction="none", delta=0.5)
    torch.testing.assert_close(found, twice)
    with pytest.raises(ValueError, match="delta"):
        build_loss(LOSSES["huber"], {"delta": 0.0})
