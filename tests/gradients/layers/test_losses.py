"""Losses by row: the same as the loop's, and never of another record's rows."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.gradients import Isolation, LossError, capture, hvp

Loss = Callable[[Tensor, Tensor], Tensor]
CLASS, POSITION = torch.randint(3, (6,)), torch.randint(3, (6, 4))

CASES: dict[str, tuple[Loss, tuple[int, ...], Tensor]] = {
    "classes": (lambda x, y: F.cross_entropy(x, y, reduction="none"), (3,), CLASS),
    "probabilities": (
        lambda x, y: F.cross_entropy(x, y, reduction="none"), (3,), torch.rand(6, 3)),
    "smoothed": (
        lambda x, y: F.cross_entropy(x, y, reduction="none", label_smoothing=0.2), (3,), CLASS),
    "weighted": (
        lambda x, y: F.cross_entropy(x, y, torch.arange(3.0), reduction="none"), (3,), CLASS),
    "ignored": (
        lambda x, y: F.cross_entropy(x, y, reduction="none", ignore_index=1), (3,), CLASS),
    "positions": (
        lambda x, y: F.cross_entropy(x, y, reduction="none").sum(1), (3, 4), POSITION),
    "mean of one": (lambda x, y: F.cross_entropy(x, y), (3,), CLASS),
    "sum of positions": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), (3, 4), POSITION),
    "without rows": (lambda x, y: F.cross_entropy(x[0], y[0], reduction="none"), (3,), CLASS),
    "probabilities without rows": (
        lambda x, y: F.cross_entropy(x[0], y[0], reduction="none"), (3,), torch.rand(6, 3)),
    "log probabilities": (
        lambda x, y: F.nll_loss(x.log_softmax(1), y, reduction="none"), (3,), CLASS),
    "class of no record": (
        lambda x, y: F.cross_entropy(x, torch.ones(1, dtype=torch.long), reduction="none"),
        (3,), CLASS),
}  # fmt: skip


def _case(name: str) -> tuple[nn.Module, Callable[[nn.Module, Any], Tensor], tuple[Tensor, Tensor]]:
    own, shape, targets = CASES[name]
    model = nn.Sequential(nn.Linear(5, torch.Size(shape).numel()), nn.Unflatten(1, shape))
    return model, lambda net, batch: own(net(batch[0]), batch[1]), (torch.randn(6, 5), targets)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_loops(name: str) -> None:
    model, loss, batch = _case(name)
    fast, slow = capture(model, loss, batch), capture(model, loss, batch, isolation="loop")
    torch.testing.assert_close(fast.losses, slow.losses)
    torch.testing.assert_close(fast.materialise(), slow.materialise())


@pytest.mark.parametrize("name", ["classes", "positions", "log probabilities"])
def test_second_derivatives_are_the_loops(name: str) -> None:
    model, loss, batch = _case(name)
    along = {key: torch.randn_like(value) for key, value in model.named_parameters()}
    fast, slow = (
        hvp(model, loss, batch, along, isolation=isolation).materialise()
        for isolation in get_args(Isolation)
    )
    torch.testing.assert_close(fast, slow)


def test_rows_of_one_record_are_taken_together() -> None:
    model, loss, batch = _case("classes")
    fast = capture(model, loss, batch, rows=2)
    slow = capture(model, loss, batch, rows=2, isolation="loop")
    torch.testing.assert_close(fast.materialise(), slow.materialise())


def test_a_mean_over_rows_of_one_record_is_refused() -> None:
    model, _, batch = _case("classes")
    with pytest.raises(LossError, match="one loss per record"):
        capture(model, lambda net, own: F.cross_entropy(net(own[0]), own[1]), batch, rows=2)
