"""A run with recorded captures is the run without them, to the bit, and follows its model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

import plumbline as pl
from plumbline.gradients import KERNELS
from plumbline.gradients.programs import Programs
from plumbline.gradients.recording import Program

STEPS = 24
Between = Callable[[Any, int], object]


class Scaled(nn.Module):
    """Code of its own; ``scale`` may be set between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * self.scale


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(), nn.Dropout(0.5).eval(), nn.Linear(6, 2))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 2), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(12, 2),
    )  # fmt: skip


def run(
    method: Any,
    between: Between | None = None,
    make: Callable[[], nn.Module] = plain,
    *,
    on_trust: bool = False,
    loss: Any = None,
    expected: int = 20,
    **more: Any,
) -> Tensor:
    torch.manual_seed(0)
    x, y = torch.randn(200, 5), torch.randint(2, (200,))
    model = make()
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.3),
        (x, y),
        loss=loss or nn.CrossEntropyLoss(reduction="none"),
        method=method,
        budget=pl.Budget(
            noise_multiplier=1.0, delta=1e-5, steps=STEPS, expected_batch_size=expected
        ),
        seed=1,
        **more,
    )
    if on_trust:
        private.record_captures()
        assert "Captures were recorded" in private.statement()
    assert "made-up records" not in private.statement()
    for step, batch in enumerate(private):
        if between is not None:
            between(model, step)
        private.step(batch)
    if between is None:
        used = private.programs is not None and private.programs.used
        assert ("made-up records" in private.statement()) == (used and not on_trust)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


METHODS: dict[str, Callable[[], Any]] = {
    "dpsgd": lambda: pl.methods.dpsgd(clip=1.0),
    "bam": lambda: pl.methods.bam(clip=1.0, radius=0.05),
    "dp_sat": lambda: pl.methods.dp_sat(clip=1.0, radius=0.05),
    "global_adapt": lambda: pl.methods.global_adapt(clip=0.5, initial=2.0),
    "inner_outer": lambda: pl.methods.inner_outer(clip=1.0),
}


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs choose the same kernels."""
    monkeypatch.setattr(KERNELS, "measure", False)
    monkeypatch.setattr(KERNELS, "_chosen", {})


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects one entry for each capture that a program made."""
    found: list[int] = []
    run_it = Program.__call__

    def counted(self: Program, given: Any, records: int) -> Any:
        found.append(records)
        return run_it(self, given, records)

    monkeypatch.setattr(Program, "__call__", counted)
    return found


@pytest.fixture
def as_without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Compares a run with the same one without programs."""

    def compare(*args: Any, **more: Any) -> None:
        weights = run(*args, **more)
        with monkeypatch.context() as patched:
            patched.setattr(Programs, "run", lambda self, own, *given: own())
            assert torch.equal(weights, run(*args, **more))

    return compare


@pytest.mark.parametrize("name", METHODS)
def test_a_run_has_the_weights_of_one_without_programs(
    name: str, replayed: list[int], as_without: Callable[..., None]
) -> None:
    as_without(METHODS[name]())
    assert len(replayed) >= STEPS - 2


@pytest.mark.parametrize("name", METHODS)
def test_so_has_one_on_trust(
    name: str, replayed: list[int], as_without: Callable[..., None]
) -> None:
    as_without(METHODS[name](), make=Scaled, on_trust=True)
    assert len(replayed) >= STEPS // 2


def test_convolutions(replayed: list[int], as_without: Callable[..., None]) -> None:
    as_without(METHODS["bam"](), make=images)
    assert replayed


@pytest.mark.parametrize("chunk", [1, 3])
def test_in_chunks(chunk: int, replayed: list[int], as_without: Callable[..., None]) -> None:
    as_without(METHODS["dpsgd"](), max_physical_batch=chunk, expected=6)
    assert len(replayed) > STEPS


def test_batches_that_are_often_empty_or_of_one_record(
    replayed: list[int], as_without: Callable[..., None]
) -> None:
    as_without(METHODS["dpsgd"](), expected=1)
    assert set(replayed) >= {2}  # a record alone is run twice


def test_several_views_of_a_record(replayed: list[int], as_without: Callable[..., None]) -> None:
    method = pl.methods.self_augmented(clip=1.0, views=3, augment=lambda x, random: 0.9 * x)
    as_without(method)
    assert replayed


def test_users(replayed: list[int], as_without: Callable[..., None]) -> None:
    as_without(METHODS["bam"](), user_ids=torch.arange(200) // 2, expected=10)
    assert replayed


def test_a_model_with_code_of_its_own_is_run(replayed: list[int]) -> None:
    run(METHODS["dpsgd"](), make=Scaled)
    assert not replayed


def at_twelve(change: Callable[[Any], object]) -> Between:
    return lambda model, step: change(model) if step == 12 else None


CHANGES: dict[str, Callable[[Any], object]] = {
    "a setting": lambda model: setattr(model[1], "negative_slope", 0.9),
    "a mode": lambda model: model[2].train(),
    "a hook": lambda model: model[0].register_forward_hook(lambda *given: given[2] * 3),
    "a forward": lambda model: setattr(model[1], "forward", lambda x: x * x),
    "a module": lambda model: model.__setitem__(1, nn.Tanh()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_steps_counts_at_once(
    name: str, replayed: list[int], as_without: Callable[..., None]
) -> None:
    as_without(METHODS["dpsgd"](), at_twelve(CHANGES[name]))
    assert replayed


def test_a_hook_on_all_modules_counts_at_once(
    replayed: list[int], as_without: Callable[..., None]
) -> None:
    handles: list[Any] = []

    def triple(model: nn.Module, step: int) -> None:
        if step == 12:
            hook = torch_module.register_module_forward_hook
            handles.append(hook(lambda module, given, output: output * 3))
        if step == STEPS - 1:
            handles.pop().remove()

    as_without(METHODS["dpsgd"](), triple)
    assert replayed


def test_a_loss_that_changes_counts_at_once(
    replayed: list[int], as_without: Callable[..., None]
) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), reduction="none")

    def smooth(model: nn.Module, step: int) -> None:
        loss.label_smoothing = 0.0 if step < 8 else 0.2
        assert loss.weight is not None
        loss.weight[0] = 1.0 if step < 16 else 3.0

    as_without(METHODS["dpsgd"](), smooth, loss=loss)
    assert replayed


def test_so_does_a_setting_on_trust(replayed: list[int], as_without: Callable[..., None]) -> None:
    schedule = at_twelve(lambda model: setattr(model, "scale", 0.5))
    as_without(METHODS["dpsgd"](), schedule, Scaled, on_trust=True)
    assert replayed


class Skips(Scaled):
    """Leaves a layer out now and then, by Python's generator."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * (0.0 if random.random() < 0.02 else 1.0)


def test_a_model_that_draws_from_a_global_generator_is_always_run(
    as_without: Callable[..., None],
) -> None:
    as_without(METHODS["dpsgd"](), make=Skips, on_trust=True)


TEMPERATURE = 1.0


class Global(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) / TEMPERATURE


def test_so_does_a_global_variable(replayed: list[int], as_without: Callable[..., None]) -> None:
    def schedule(model: nn.Module, step: int) -> None:
        global TEMPERATURE
        TEMPERATURE = 1.0 if step < 12 else 3.0

    as_without(METHODS["dpsgd"](), schedule, Global, on_trust=True)
    assert replayed


def test_records_one_after_the_other_are_not_recorded() -> None:
    with pytest.raises(ValueError, match="isolation"):
        run(METHODS["dpsgd"](), make=Scaled, on_trust=True, isolation="loop")
