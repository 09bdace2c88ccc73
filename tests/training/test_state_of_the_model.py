"""A run whose model keeps something of its records ends before anything is released."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients.errors import RecordsMixError
from plumbline.training import WeightsMoved
from tests.training.small import LOSS, RECORDS, budget, private, run

ALL = budget(expected_batch_size=RECORDS, steps=12)


class Model(nn.Module):
    """Linear, on a frozen layer, and does something else beside."""

    def __init__(self, beside: Callable[[Any, Tensor], object]) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(6))
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        self.beside(self, x)
        y: Tensor = self.head(self.frozen(x))
        return y


def when_gradients_are_on(model: Any, x: Tensor) -> None:
    if torch.is_grad_enabled():
        model.seen.data.fill_(1.0)


class EverySeventhTime:
    """Nobody can see how often it was called."""

    def __init__(self) -> None:
        self.hidden = threading.local()
        self.hidden.calls = 0

    def __call__(self, model: Any, x: Tensor) -> None:
        self.hidden.calls += torch.is_grad_enabled()
        if self.hidden.calls == 7:
            model.seen.data.fill_(1.0)


class WritesInTheBackwardPass(nn.Module):
    """A tensor hook writes to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        def write(gradient: Tensor) -> None:
            self.seen.data.fill_(1.0)

        y: Tensor = self.head(x)
        if y.requires_grad:
            y.register_hook(write)
        return y


def test_a_tensor_hook_is_not_installed_inside_a_records_run() -> None:
    """There a tensor says that it requires no gradient; one who insists is refused."""
    model = WritesInTheBackwardPass()
    run(private(model, plan=ALL))
    assert float(model.seen) == 0


def test_what_a_tensor_hook_writes_in_the_loop() -> None:
    mine = private(WritesInTheBackwardPass(), plan=ALL, isolation="loop")
    with pytest.raises(RecordsMixError, match="buffer 'seen'"):
        run(mine)
    assert mine.charged == 0


def through_data(model: Any, x: Tensor) -> None:
    if torch.is_grad_enabled():
        model.frozen.weight.data[0, 0] = 1.0


def in_an_attribute(model: Any, x: Tensor) -> None:
    if torch.is_grad_enabled():
        model.kept = x


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        (when_gradients_are_on, "buffer 'seen' of the model itself"),
        (EverySeventhTime(), "buffer 'seen'"),
        (through_data, "frozen parameter 'weight' of the module 'frozen'"),
        (in_an_attribute, "as 'kept' of"),
    ],
    ids=["gradients-on", "seventh-time", "data", "attribute"],
)
def test_what_is_written_only_in_the_real_step(
    beside: Callable[[Any, Tensor], object], message: str
) -> None:
    mine = private(Model(beside), plan=ALL)
    with pytest.raises(RecordsMixError, match=message):
        run(mine)
    assert mine.steps_done < 12
    if not isinstance(beside, EverySeventhTime):
        assert mine.charged == 0


def test_a_checkpoint_compares_everything(tmp_path: Path) -> None:
    mine = private(Model(lambda model, x: None), plan=ALL)
    run(mine, 2)
    mine.save(tmp_path / "before")
    mine.model.frozen.weight.data[0, 0] += 1
    with pytest.raises(RecordsMixError, match="frozen parameter 'weight'"):
        mine.save(tmp_path / "after")
    assert not (tmp_path / "after").exists()


def test_the_last_step_compares_everything() -> None:
    looked: list[int] = []
    mine = private(Model(lambda model, x: None))
    check = mine.check_state
    mine.check_state = lambda: (looked.append(mine.steps_done), check())[1]  # type: ignore[method-assign]
    run(mine)
    assert looked == [4]


def test_a_model_may_be_changed_between_steps() -> None:
    mine = private(Model(lambda model, x: None), plan=ALL)

    def train() -> None:
        for batch in mine:
            mine.step(batch)
            with torch.no_grad():
                mine.model.seen.add_(1)
                mine.model.frozen.weight.mul_(0.9)
            mine.model.eval()
            mine.model.train()

    with pytest.warns(WeightsMoved):  # which the statement mentions
        train()
    assert mine.steps_done == mine.moved == mine.plan.steps
    mine.close()


def test_a_loss_that_keeps_its_outputs() -> None:
    kept: list[Tensor] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            kept.append(output)
        return LOSS(output, target)

    mine = private(plan=ALL, loss=loss)
    with pytest.raises(RecordsMixError, match="keeps a tensor of a record"):
        run(mine)
    assert mine.charged == 0


def test_a_loss_of_model_and_batch_that_keeps_something() -> None:
    kept: list[Tensor] = []

    @pl.batch_loss
    def loss(model: nn.Module, batch: Any) -> Tensor:
        losses = LOSS(model(batch[0]), batch[1])
        if torch.is_grad_enabled():
            kept.append(losses)
        return losses

    with pytest.raises(RecordsMixError, match="keeps a tensor of a record"):
        run(private(plan=ALL, loss=loss))
