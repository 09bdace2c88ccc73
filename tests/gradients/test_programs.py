"""Recorded captures: what they give is what the model gives, and they do not outlive the model."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.gradients import PerSampleGradients, Perturbation, capture
from plumbline.gradients.programs import Programs, StaleProgram
from plumbline.gradients.recording import NotRecordable, Program, Recording, taken_apart

CLASSES = 3


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Tied(nn.Module):
    """One weight used twice, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inside(torch.tanh(self.inside(x))) * self.scale)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens))
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def rows(*shape: int) -> Callable[[int], Tensor]:
    return lambda records: torch.randn(records, *shape)


def words(records: int) -> Tensor:
    return torch.randint(11, (records, 5))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES)),
        rows(6),
    ),
    "without bias": (lambda: nn.Linear(6, CLASSES, bias=False), rows(6)),
    "tied": (Tied, rows(6)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.SELU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, CLASSES),
        ),
        rows(2, 6, 6),
    ),
    "attention": (Attention, words),
    "weight norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, CLASSES)
        ),
        rows(6),
    ),
}


def batch_of(make: Callable[[int], Tensor], records: int) -> tuple[Tensor, Tensor]:
    return make(records), torch.randint(CLASSES, (records,))


def recorded(compute: Callable[[], Any], given: Any, records: int) -> Recording:
    recording = Recording(compute, taken_apart(given, records)[1], records)
    recording.take_apart()
    return recording


def program_of(
    model: nn.Module, make: Callable[[int], Tensor], at: Callable[[Any], Any] = lambda batch: None
) -> Program:
    recordings = []
    for records in (7, 9):
        batch = batch_of(make, records)
        for _ in range(2):  # the first is compared with autograd
            capture(model, losses, batch, at(batch))
        where = at(batch)

        def compute(batch: Any = batch, where: Any = where) -> PerSampleGradients:
            return capture(model, losses, batch, where)

        recordings.append(recorded(compute, (batch, where), records))
    return Program(*recordings)


def assert_same(one: PerSampleGradients, two: PerSampleGradients) -> None:
    assert one.names == two.names
    assert one.records == two.records
    assert torch.equal(one.losses, two.losses)
    for name in one.names:
        assert torch.equal(one.term(name).all(), two.term(name).all()), name
    assert torch.equal(one.norms(), two.norms())
    weights = torch.rand(two.records, generator=torch.Generator().manual_seed(3))
    for name, value in two.total(weights).items():
        assert torch.equal(one.total(weights)[name], value), name


RECORDABLE = [name for name in MODELS if name != "weight norm"]


@pytest.mark.parametrize("name", RECORDABLE)
@pytest.mark.parametrize("records", [2, 5, 40])
def test_a_program_gives_what_the_capture_gives_to_the_bit(name: str, records: int) -> None:
    torch.manual_seed(0)
    build, make = MODELS[name]
    model = build()
    program = program_of(model, make)
    batch = batch_of(make, records)
    assert_same(program(list(batch), records), capture(model, losses, batch))


def test_a_program_sees_the_weights_as_they_are_now() -> None:
    torch.manual_seed(0)
    build, make = MODELS["mlp"]
    model = build()
    program = program_of(model, make)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    batch = batch_of(make, 6)
    assert_same(program(list(batch), 6), capture(model, losses, batch))


@pytest.mark.parametrize("name", ["mlp", "tied", "convolution"])
def test_at_each_records_own_weights(name: str) -> None:
    torch.manual_seed(0)
    build, make = MODELS[name]
    model = build()

    def own(batch: Any) -> Perturbation:
        gradients = capture(model, losses, batch)
        return Perturbation(gradients, 0.1 / gradients.norms())

    try:
        program = program_of(model, make, own)
    except NotRecordable:
        assert name == "tied"  # its gradients are kept in a form that is not taken apart
        return
    batch = batch_of(make, 6)
    where = own(batch)
    result = program(taken_apart((batch, where), 6)[1], 6)
    assert_same(result, capture(model, losses, batch, where))


def filled_unseen(memory: Tensor, values: Tensor) -> Tensor:
    memory.numpy()[:] = values.numpy()
    return memory


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x[0] + x.sum(0), "places"),
        (lambda x: x[:2].sum(0), "places"),
        (lambda x: x * float(x.sum()), "read"),
        (lambda x: x + torch.tensor(x.detach().numpy() + 1), "elsewhere"),
        (lambda x: filled_unseen(torch.empty(len(x), 6), x) * 2, "filled"),
        (lambda x: x + torch.ones(len(x) + 1, 6)[1:], "a number differs"),
        (lambda x: torch.cat([x] * (len(x) // 4)), "an argument differs"),
    ],
    ids=["one record", "some records", "a number", "numpy", "empty", "a length", "repetitions"],
)
def test_what_cannot_be_run_for_other_records_is_refused(
    function: Callable[[Tensor], Tensor], why: str
) -> None:
    recordings = []
    for records in (7, 9):
        x = torch.randn(records, 6)
        recordings.append(recorded(lambda x=x: function(x), (x,), records))
    with pytest.raises(NotRecordable, match=why):
        Program(*recordings)


def test_a_model_that_draws_is_not_recorded() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    with pytest.raises(NotRecordable):
        program_of(model, rows(6))


class Counted:
    """A model under ``Programs``, with the number of times that its own code has run."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.make, self.ran = model, rows(6), 0
        self.version, self.coin = 0, 1.0
        self.programs = Programs(lambda: self.version, lambda: self.coin)
        self.sizes = itertools.cycle([6, 8, 7, 11])

    def __call__(self, records: int | None = None) -> tuple[PerSampleGradients, Any]:
        records = records or next(self.sizes)
        batch = batch_of(self.make, records)

        def compute() -> PerSampleGradients:
            self.ran += 1
            return capture(self.model, losses, batch)

        return self.programs.run(compute, self.model, (batch, None, None), records), batch

    def own_code_ran(self, steps: int = 1) -> bool:
        """Whether the model's own code ran in each of the next steps; or in none of them."""
        before = self.ran
        for _ in range(steps):
            result, batch = self()
            assert_same(result, capture(self.model, losses, batch))
        assert self.ran - before in (0, steps)
        return self.ran > before


def test_a_program_replaces_the_models_code_after_it_was_compared() -> None:
    run = Counted(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES)))
    assert run.own_code_ran(2 + 2 + 3)  # to settle, to record, to compare
    assert not run.own_code_ran(20)


def test_it_is_compared_again_when_the_coin_says_so() -> None:
    run = Counted(nn.Linear(6, CLASSES))
    run.own_code_ran(7)
    run.coin = 0.0
    assert run.own_code_ran(3)


def test_a_change_that_was_seen_makes_it_forgotten() -> None:
    run = Counted(nn.Linear(6, CLASSES))
    run.own_code_ran(7)
    assert not run.own_code_ran()
    run.version += 1
    assert run.own_code_ran()


def test_batches_of_one_size_have_a_program_for_that_size() -> None:
    run = Counted(nn.Linear(6, CLASSES))
    run.sizes = itertools.cycle([6])
    run.own_code_ran(7)
    assert not run.own_code_ran(10)
    run.sizes = itertools.cycle([8, 7])
    assert run.own_code_ran(2 + 3)
    assert not run.own_code_ran(10)


def test_other_parameters_and_modes_make_it_forgotten() -> None:
    run = Counted(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)).eval())
    run.own_code_ran(7)
    assert not run.own_code_ran()
    run.model[0].bias.requires_grad_(False)
    assert run.own_code_ran(7)
    assert not run.own_code_ran()
    run.model[2] = nn.Linear(8, CLASSES)
    assert run.own_code_ran()


class Clock(nn.Module):
    """Reads what nothing can watch."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * time.monotonic()


def test_a_model_that_changes_by_itself_is_told_and_its_own_result_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    run = Counted(Clock())
    run.own_code_ran(7)
    monkeypatch.setattr(time, "monotonic", lambda: 2.0)
    run.coin = 0.0
    with pytest.warns(StaleProgram, match="the clock"):
        result, batch = run()
    assert_same(result, capture(run.model, losses, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.own_code_ran(20)  # never recorded again


def test_an_error_is_the_models_own() -> None:
    run = Counted(nn.Linear(6, CLASSES))
    run.own_code_ran(7)
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, CLASSES, 0])

    def compute() -> PerSampleGradients:
        raise LookupError("with the model's own line")

    with pytest.raises(LookupError, match="own line"):
        run.programs.run(compute, run.model, ((x, y), None, None), 5)


def test_autocast_inside_the_model_is_recorded_with_the_rest() -> None:
    class Narrow(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                out: Tensor = super().forward(x)
            return out.float()

    run = Counted(Narrow(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)))
    assert run.own_code_ran(2 + 2 + 3)  # to settle, to record, to compare
    assert not run.own_code_ran(20)  # and what is computed is the same


def test_a_large_model_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.gradients.programs._MOST_BYTES", 10)
    run = Counted(nn.Linear(6, CLASSES))
    assert run.own_code_ran(20)
