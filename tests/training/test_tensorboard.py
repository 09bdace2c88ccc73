"""The TensorBoard callback, with a writer that only remembers."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from plumbline import make_private
from plumbline.mechanism.calibration import Budget
from plumbline.methods import dpsgd
from plumbline.training.tensorboard import TensorBoard


class Writer:
    made: list["Writer"]

    def __init__(self, folder: str, purge_step: int | None = None) -> None:
        self.folder, self.purge_step, self.closed = folder, purge_step, False
        self.points: list[tuple[str, float, int]] = []
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.points.append((name, value, step))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    Writer.made = []
    return Writer


def test_epsilon_and_the_learning_rate_are_written(writer: type[Writer]) -> None:
    model = nn.Linear(2, 2)
    private = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        (torch.randn(20, 2), torch.zeros(20, dtype=torch.long)),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=dpsgd(),
        budget=Budget(noise_multiplier=1.0, delta=1e-3, steps=5, expected_batch_size=10),
    )
    board = TensorBoard("somewhere", every=2)
    private.fit([board], progress=False)
    board.add(5, {"held out/loss": 0.25})
    board.close()
    (made,) = writer.made
    assert (made.folder, made.purge_step, made.closed) == ("somewhere", None, True)
    steps = [step for name, _, step in made.points if name == "epsilon"]
    assert steps == [2, 4, 5]
    spent = [value for name, value, _ in made.points if name == "epsilon"]
    assert spent == sorted(spent)
    assert ("learning rate", 0.5, 5) in made.points
    assert made.points[-1] == ("held out/loss", 0.25, 5)


def test_a_run_that_goes_on_drops_later_points(writer: type[Writer]) -> None:
    TensorBoard("somewhere", first=40)
    assert writer.made[0].purge_step == 41


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"plumbline\[tensorboard\]"):
        TensorBoard("somewhere")


def test_every_is_at_least_one(writer: type[Writer]) -> None:
    with pytest.raises(ValueError, match="every is 0"):
        TensorBoard("somewhere", every=0)
