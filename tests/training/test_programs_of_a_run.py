"""A run with recorded captures is the run without them, to the bit, and follows its model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients.programs import Programs

STEPS = 24


class Scaled(nn.Module):
    """Counts nothing of its own; ``scale`` may be set between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * self.scale


def run(method: Any, between: Callable[[Scaled, int], None] | None = None, **more: Any) -> Tensor:
    torch.manual_seed(0)
    x, y = torch.randn(200, 5), torch.randint(2, (200,))
    model = Scaled()
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.3),
        (x, y),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=method,
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-5, steps=STEPS, expected_batch_size=20),
        seed=1,
        **more,
    )
    private.record_captures()
    assert "Captures were recorded" in private.statement()
    for step, batch in enumerate(private):
        if between is not None:
            between(model, step)
        private.step(batch)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Programs, "run", lambda self, compute, *given: compute())


METHODS = {
    "dpsgd": lambda: pl.methods.dpsgd(clip=1.0),
    "bam": lambda: pl.methods.bam(clip=1.0, radius=0.05),
    "dp_sat": lambda: pl.methods.dp_sat(clip=1.0, radius=0.05),
    "global_adapt": lambda: pl.methods.global_adapt(clip=0.5, initial=2.0),
    "inner_outer": lambda: pl.methods.inner_outer(clip=1.0),
}


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects one entry for each capture that a program made."""
    from plumbline.gradients.recording import Program

    found: list[int] = []
    run_it = Program.__call__

    def counted(self: Program, given: Any, records: int) -> Any:
        found.append(records)
        return run_it(self, given, records)

    monkeypatch.setattr(Program, "__call__", counted)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_run_has_the_weights_of_one_without_programs(
    name: str, replayed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = run(METHODS[name]())
    assert len(replayed) >= STEPS // 2
    without_programs(monkeypatch)
    assert torch.equal(weights, run(METHODS[name]()))


@pytest.mark.parametrize("chunk", [7, None])
def test_in_chunks(chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = run(METHODS["dpsgd"](), max_physical_batch=chunk)
    without_programs(monkeypatch)
    assert torch.equal(weights, run(METHODS["dpsgd"](), max_physical_batch=chunk))


def test_a_setting_of_the_model_that_changes_between_steps_counts_at_once(
    replayed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def schedule(model: Scaled, step: int) -> None:
        if step == 12:
            model.scale = 0.5

    weights = run(METHODS["dpsgd"](), schedule)
    assert replayed
    without_programs(monkeypatch)
    assert torch.equal(weights, run(METHODS["dpsgd"](), schedule))


class Skips(Scaled):
    """Leaves a layer out now and then, by Python's generator."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * (0.0 if random.random() < 0.02 else 1.0)


def test_a_model_that_draws_from_a_global_generator_is_always_run(
    replayed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "Scaled", Skips)
    run(METHODS["dpsgd"]())
    assert not replayed


TEMPERATURE = 1.0


class Global(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) / TEMPERATURE


def test_so_does_a_global_variable(replayed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(model: Scaled, step: int) -> None:
        global TEMPERATURE
        TEMPERATURE = 1.0 if step < 12 else 3.0

    monkeypatch.setitem(globals(), "Scaled", Global)
    weights = run(METHODS["dpsgd"](), schedule)
    assert replayed
    without_programs(monkeypatch)
    assert torch.equal(weights, run(METHODS["dpsgd"](), schedule))
