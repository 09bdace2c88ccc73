"""One loss per record, from every form in which a loss and a batch can come."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plumbline.training.losses import BatchLoss, applied, batch_loss, per_record

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 1, 0, 1])


def test_inputs_and_target() -> None:
    model = nn.Linear(3, 2)
    losses = per_record(nn.CrossEntropyLoss(reduction="none"))(model, (X, Y))
    expected = [nn.functional.cross_entropy(model(X[i : i + 1]), Y[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(losses, torch.stack(expected))


def test_several_inputs() -> None:
    model = nn.Bilinear(3, 3, 2)
    losses = per_record(nn.CrossEntropyLoss(reduction="none"))(model, [X, 2 * X, Y])
    torch.testing.assert_close(
        losses, nn.functional.cross_entropy(model(X, 2 * X), Y, reduction="none")
    )


def test_a_function_of_output_and_target() -> None:
    model = nn.Linear(3, 1)
    losses = per_record(lambda output, target: (output[:, 0] - target).abs())(model, (X, Y))
    torch.testing.assert_close(losses, (model(X)[:, 0] - Y).abs())


def test_several_outputs_are_averaged_record_by_record() -> None:
    model = nn.Linear(3, 4)
    target = torch.zeros(5, 4)
    losses = per_record(nn.MSELoss(reduction="none"))(model, (X, target))
    torch.testing.assert_close(losses, model(X).square().mean(1))


class Named(nn.Module):
    def __init__(self, wrapped: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.wrapped = wrapped

    def forward(self, *, features: Tensor, scale: Tensor) -> Any:
        logits = self.linear(features) * scale[:, None]
        return SimpleNamespace(logits=logits) if self.wrapped else logits


@pytest.mark.parametrize("wrapped", [False, True], ids=["tensor", "object-with-logits"])
def test_named_columns_go_to_the_model_by_name(wrapped: bool) -> None:
    model = Named(wrapped)
    scale = torch.arange(5.0)
    batch = {"features": X, "labels": Y, "scale": scale}
    losses = per_record(nn.CrossEntropyLoss(reduction="none"))(model, batch)
    logits = model.linear(X) * scale[:, None]
    torch.testing.assert_close(losses, nn.functional.cross_entropy(logits, Y, reduction="none"))


def test_a_marked_function_runs_the_model_itself() -> None:
    marked = batch_loss(lambda model, batch: model(batch).square().sum(1))
    assert isinstance(marked, BatchLoss)
    assert per_record(marked) is marked
    model = nn.Linear(3, 2)
    torch.testing.assert_close(marked(model, X), model(X).square().sum(1))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_that_reduces_over_the_batch_is_refused(reduction: str) -> None:
    with pytest.raises(ValueError, match=f'reduction={reduction!r}.*reduction="none"'):
        per_record(nn.CrossEntropyLoss(reduction=reduction))


def test_applied_takes_a_loss_that_reduces() -> None:
    model = nn.Linear(3, 2)
    value = applied(nn.CrossEntropyLoss())(model, (X, Y))
    torch.testing.assert_close(value, nn.functional.cross_entropy(model(X), Y))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        pytest.param({"features": X}, "no 'labels'", id="no-labels"),
        pytest.param(X, "type Tensor has no target", id="a-tensor"),
        pytest.param((X,), "no target", id="one-element"),
    ],
)
def test_a_batch_without_a_target_is_refused(batch: Any, message: str) -> None:
    run = per_record(nn.CrossEntropyLoss(reduction="none"))
    with pytest.raises(ValueError, match=f"{message}.*batch_loss"):
        run(nn.Linear(3, 2), batch)
