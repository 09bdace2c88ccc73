"""The moving average of the weights: post-processing, as defined, and kept through checkpoints."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.training import CheckpointMismatch
from plumbline.training.averaging import WeightAverage
from tests.training.runs import STEPS, Run, weights
from tests.training.small import budget, network, private, run

REPEATABLE: dict[str, Any] = {"seed": 7, "deterministic": True}


def literal(history: list[Tensor], decay: float) -> Tensor:
    """De et al.'s average of the weights at the start and after each step."""
    average = history[0].double()
    for t, now in enumerate(history[1:]):
        mu = min(decay, (1.0 + t) / (10.0 + t))
        average = mu * average + (1 - mu) * now.double()
    return average


def averaged(private: pl.Private) -> Tensor:
    with private.averaged() as model:
        return weights(model).clone()


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999], ids=["none", "soon-reached", "warm-up-only"])
def test_it_is_the_literal_average(decay: float) -> None:
    model = network()
    mine = private(model, plan=budget(steps=12), averaging=decay)
    history = [weights(model)]
    for batch in mine:
        mine.step(batch)
        history.append(weights(model))
    with mine.averaged() as averaged:
        assert averaged is model
        found = weights(model)
    torch.testing.assert_close(found.double(), literal(history, decay), rtol=1e-5, atol=1e-6)
    assert torch.equal(weights(model), history[-1])


def test_the_decay_takes_over_from_the_warm_up() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage(model, 0.5)
    nn.init.zeros_(model.weight)
    seen = []
    for t in range(12):
        before = float(average.state_dict()["weights"]["weight"])
        nn.init.constant_(model.weight, 1.0 + t)
        average.update()
        after = float(average.state_dict()["weights"]["weight"])
        seen.append((1.0 + t - after) / (1.0 + t - before))
    expected = [0.1, 2 / 11, 3 / 12, 4 / 13, 5 / 14, 6 / 15, 7 / 16, 8 / 17, 0.5, 0.5, 0.5, 0.5]
    assert seen == pytest.approx(expected, rel=1e-5)


def test_training_and_its_guarantee_are_as_without() -> None:
    plain, averaged = network(), network()
    without = private(plain)
    mine = private(averaged, averaging=0.9)
    assert mine.run == without.run  # the same run, and a ledger takes them as one
    run(without)
    run(mine)
    assert torch.equal(weights(plain), weights(averaged))
    assert mine.statement() == without.statement()
    assert json.loads(mine.statement("json")) == json.loads(without.statement("json"))


def test_buffers_and_frozen_weights_are_the_models_own() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.end = nn.Linear(6, 2)
            self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
            self.register_buffer("shift", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.end((x + self.get_buffer("shift")) * self.frozen)

    model = Shifted()
    mine = private(model, averaging=0.9)
    run(mine)
    model.get_buffer("shift").fill_(3)
    with torch.no_grad():
        model.frozen.fill_(5)
    own = model.end.weight.clone()
    with mine.averaged():
        assert torch.equal(model.get_buffer("shift"), torch.full((6,), 3.0))
        assert torch.equal(model.frozen, torch.full((6,), 5.0))
        assert not torch.equal(model.end.weight, own)
    state = mine.average.state_dict()  # type: ignore[union-attr]
    assert set(state["weights"]) == {"end.weight", "end.bias"}


def test_a_weight_that_is_thawed_is_averaged_from_then_on() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    first = model[0].weight.requires_grad_(False)
    average = WeightAverage(model, 0.9)
    average.update()
    first.requires_grad_(True)
    nn.init.constant_(first, 4.0)
    average.update()
    nn.init.constant_(first, 8.0)
    average.update()
    with average.applied():
        assert float(first.detach()) == pytest.approx(0.25 * 4 + 0.75 * 8)


def test_tied_weights_are_averaged_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    average = WeightAverage(model, 0.9)
    nn.init.zeros_(model[0].weight)
    average.update()
    own = model[0].weight.detach().clone()
    with average.applied():
        assert not torch.equal(model[0].weight, own)
        assert model[1].weight is model[0].weight
    assert torch.equal(model[0].weight, own)


def test_an_average_of_bfloat16_weights_moves() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.constant_(model.weight, 1.0)
    average = WeightAverage(model, 0.999)
    average.steps = 100_000
    nn.init.constant_(model.weight, 1.5)
    for _ in range(200):
        average.update()
    with average.applied():
        assert model.weight.dtype == torch.bfloat16
        assert float(model.weight.detach()) == pytest.approx(1.5 - 0.5 * 0.999**200, rel=1e-2)


def test_the_models_own_weights_come_back_after_an_error() -> None:
    mine = private(averaging=0.9)
    run(mine)
    own = weights(mine.model)
    with pytest.raises(KeyError), mine.averaged():
        raise KeyError
    assert torch.equal(weights(mine.model), own)


@pytest.mark.parametrize(
    ("what", "action"),
    [
        ("train on", lambda mine, _: mine.step(next(iter(mine)))),
        ("save", lambda mine, path: mine.save(path)),
        ("average them again", lambda mine, _: mine.averaged().__enter__()),
    ],
)
def test_inside_the_block_nothing_goes_on(
    tmp_path: Path, what: str, action: Callable[[pl.Private, Path], object]
) -> None:
    mine = private(averaging=0.9)
    run(mine, 2)
    with mine.averaged(), pytest.raises(RuntimeError, match=f"Leave that block to {what}"):
        action(mine, tmp_path / "checkpoint")
    assert mine.charged == 2
    run(mine)
    assert mine.charged == 4


def test_without_an_average_the_error_says_how() -> None:
    mine = private()
    with pytest.raises(ValueError, match=r"make_private\(\.\.\., averaging=0\.999\)"):
        mine.averaged()


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan"), True, "0.9"])
def test_the_decay_is_checked(decay: Any) -> None:
    with pytest.raises(ValueError, match=r"averaging is .*it must be at least 0 and below 1"):
        private(averaging=decay)


def test_a_step_that_fails_is_not_averaged() -> None:
    model = network()

    class Failing(torch.optim.SGD):
        def step(self, *_: Any) -> Any:
            raise OSError("no optimizer today")

    mine = private(model, optimizer=Failing(model.parameters(), lr=0.5), averaging=0.9)
    own = weights(model)
    with pytest.raises(OSError, match="today"):
        run(mine, 1)
    assert mine.average is not None
    assert mine.average.steps == 0
    assert torch.equal(averaged(mine), own)


@pytest.mark.parametrize("stop", [0, 5], ids=["before-the-first-step", "on-the-way"])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, stop: int) -> None:
    settings = {**REPEATABLE, "averaging": 0.9}
    torch.manual_seed(1)
    whole = Run("adam", settings)
    expected = whole.train(whole.make())

    torch.manual_seed(1)
    part = Run("adam", settings)
    part.train(part.make(), stop).save(tmp_path / "checkpoint")
    torch.manual_seed(99)
    part = Run("adam", settings)
    found = part.train(part.resume(tmp_path / "checkpoint"))

    assert found.steps_done == STEPS
    assert found.average is not None
    assert expected.average is not None
    assert found.average.steps == expected.average.steps == STEPS
    assert torch.equal(averaged(found), averaged(expected))
    assert torch.equal(weights(found.model), weights(expected.model))


@pytest.mark.parametrize(("saved", "given"), [(0.9, None), (None, 0.9), (0.9, 0.99)])
def test_a_checkpoint_is_resumed_with_the_average_it_has(
    tmp_path: Path, saved: float | None, given: float | None
) -> None:
    first = Run(settings={**REPEATABLE, "averaging": saved})
    first.train(first.make(), 2).save(tmp_path / "checkpoint")
    second = Run(settings={**REPEATABLE, "averaging": given})
    before = weights(second.model)
    with pytest.raises(CheckpointMismatch, match=f"averaging is {given!r} here and {saved!r} in"):
        second.resume(tmp_path / "checkpoint")
    assert torch.equal(weights(second.model), before)


def test_a_callback_can_watch_the_averaged_model() -> None:
    mine = private(averaging=0.9)
    seen: list[Tensor] = []

    def watch(run: pl.Private, _: Any) -> None:
        with run.averaged() as model:
            seen.append(weights(copy.deepcopy(model)))

    mine.fit([watch], progress=False)
    assert len(seen) == 4
    assert torch.equal(seen[-1], averaged(mine))
