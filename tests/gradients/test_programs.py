"""Recorded captures: what they give is what the model gives, and they do not outlive the model."""

from __future__ import annotations

import ctypes
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from plumbline.gradients import PerSampleGradients, Perturbation, capture
from plumbline.gradients.kernels import KERNELS
from plumbline.gradients.programs import Given, Programs, StaleProgram, Trust
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


def filled_unseen(memory: Tensor, value: float = 1.0) -> Tensor:
    """Writes where torch does not see it; before NumPy 2.3, such an array says it is read-only."""
    seen = np.from_dlpack(memory)
    pointer = seen.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    np.ctypeslib.as_array(pointer, seen.shape)[:] = value
    return memory


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x[0] + x.sum(0), "places"),
        (lambda x: x[:2].sum(0), "places"),
        (lambda x: x * float(x.sum()), "read"),
        (lambda x: x * x.sum(1).tolist()[0], "read"),
        (lambda x: x * (x.detach().numpy() > 0).sum(), "read"),
        (lambda x: x if torch.equal(x, x) else -x, "read"),
        (lambda x: x[x[:, 0] > 0].sum(0), "read"),
        (lambda x: x + torch.rand_like(x), "random"),
        (lambda x: x + torch.tensor(np.ones(6)), "elsewhere"),
        (lambda x: x * filled_unseen(torch.empty(len(x), 6)), "filled"),
        (lambda x: x + torch.ones(len(x) + 1, 6)[1:], "a number differs"),
        (lambda x: torch.cat([x] * (len(x) // 4)), "an argument differs"),
    ],
    ids=[
        "one record",
        "some records",
        "a number",
        "a list",
        "an array",
        "a comparison",
        "a mask",
        "random numbers",
        "numpy",
        "empty",
        "a length",
        "repetitions",
    ],
)
def test_what_cannot_be_run_for_other_records_is_refused(
    function: Callable[[Tensor], Tensor], why: str
) -> None:
    def of(records: int) -> Recording:
        x = torch.randn(records, 6)
        return recorded(lambda: function(x), (x,), records)

    with pytest.raises(NotRecordable, match=why):
        Program(of(7), of(9))


def test_a_model_that_draws_is_not_recorded() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    with pytest.raises(NotRecordable):
        program_of(model, rows(6))


PROVEN: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": MODELS["mlp"],
    "sequences": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Flatten(), nn.Linear(30, CLASSES)
        ),
        rows(5, 4),
    ),
    "convolution": MODELS["convolution"],
    "convolution of sequences": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, groups=2),
            nn.PReLU(4),
            nn.AdaptiveAvgPool1d(2),
            nn.Flatten(),
            nn.Linear(8, CLASSES),
        ),
        rows(2, 9),
    ),
    "convolution of volumes": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 2, 2, stride=2), nn.Softplus(), nn.Flatten(), nn.Linear(16, CLASSES)
        ),
        rows(1, 4, 4, 4),
    ),
    "words": (
        lambda: nn.Sequential(
            nn.Embedding(11, 4, padding_idx=0), nn.RMSNorm(4), nn.Flatten(), nn.Linear(20, CLASSES)
        ),
        words,
    ),
    "frozen in part": (
        lambda: nn.Sequential(
            nn.Linear(6, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, CLASSES)
        ),
        rows(6),
    ),
    "the sizes of recordings": (
        lambda: nn.Sequential(nn.Linear(11, 13), nn.ReLU(), nn.Linear(13, CLASSES)),
        rows(11),
    ),
}

LOSS = nn.CrossEntropyLoss(reduction="none")


def module_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return LOSS(model(batch[0]), batch[1])


def must_not_run() -> PerSampleGradients:
    raise AssertionError("the model's own code ran")


def own_weights(model: nn.Module, batch: Any) -> Perturbation:
    gradients = capture(model, module_losses, batch)
    return Perturbation(gradients, 0.1 / gradients.norms())


def shared_offset(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {name: torch.full_like(p, 0.01) for name, p in trained.items()}


WHERE: dict[str, Callable[[nn.Module, Any], Any]] = {
    "as they are": lambda model, batch: None,
    "each record's own": own_weights,
    "shifted": shared_offset,
}
UNRECORDED = {("words", "each record's own")}  # the form of its gradients depends on the words


@pytest.fixture(scope="module", autouse=True)
def _pinned() -> Iterator[None]:
    with KERNELS.unmeasured():
        yield


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", PROVEN)
def test_models_of_torchs_own_modules_are_recorded_to_the_bit(name: str, where: str) -> None:
    torch.manual_seed(0)
    build, make = PROVEN[name]
    model = build()
    programs = Programs(model, LOSS)

    def run(records: int, code: Callable[[], PerSampleGradients] | None) -> None:
        batch = batch_of(make, records)
        at = WHERE[where](model, batch)
        own = capture(model, module_losses, batch, at)
        result = programs.run(code or (lambda: own), module_losses, batch, at, records)
        assert_same(result, capture(model, module_losses, batch, at))

    run(40, None)
    unseen = None if (name, where) in UNRECORDED else must_not_run
    for records in (33, 64, 57):  # a kernel may be chosen by the power of two above
        run(records, unseen)
    for records in (2, 3, 2, 3):  # or the same number may stand for something else
        run(records, None)


class Counted:
    """A model under ``Programs``, with the number of times that its own code has run."""

    def __init__(self, model: nn.Module, *, on_trust: bool = True) -> None:
        self.model, self.make, self.ran = model, rows(6), 0
        self.version, self.coin = 0, 1.0
        trust = Trust(lambda: self.version, lambda: self.coin)
        self.programs = Programs(model, LOSS, trust if on_trust else None)
        self.sizes = itertools.cycle([6, 8, 7, 11])

    def __call__(self, records: int | None = None) -> tuple[PerSampleGradients, Any]:
        records = records or next(self.sizes)
        batch = batch_of(self.make, records)

        def compute() -> PerSampleGradients:
            self.ran += 1
            return capture(self.model, module_losses, batch)

        return self.programs.run(compute, module_losses, batch, None, records), batch

    def own_code_ran(self, steps: int = 1) -> bool:
        """Whether the model's own code ran in each of the next steps; or in none of them."""
        before = self.ran
        for _ in range(steps):
            result, batch = self()
            assert_same(result, capture(self.model, module_losses, batch))
        assert self.ran - before in (0, steps)
        return self.ran > before


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5).eval(), nn.Linear(8, CLASSES))


def test_a_program_replaces_the_models_code_after_one_capture() -> None:
    run = Counted(network(), on_trust=False)
    assert run.programs.proven
    assert run.own_code_ran()
    assert not run.own_code_ran(20)


def test_one_on_trust_is_compared_first() -> None:
    run = Counted(network())
    assert run.own_code_ran(1 + 3)
    assert not run.own_code_ran(20)


def test_it_is_compared_again_when_the_coin_says_so() -> None:
    run = Counted(nn.Linear(6, CLASSES))
    run.own_code_ran(4)
    run.coin = 0.0
    assert run.own_code_ran(3)


def test_a_change_that_was_seen_makes_it_forgotten() -> None:
    run = Counted(nn.Linear(6, CLASSES))
    run.own_code_ran(4)
    assert not run.own_code_ran()
    run.version += 1
    assert run.own_code_ran()


@pytest.mark.parametrize("on_trust", [True, False])
def test_other_parameters_and_modules_make_it_forgotten(on_trust: bool) -> None:
    run = Counted(network(), on_trust=on_trust)
    settle = 4 if on_trust else 1
    run.own_code_ran(settle)
    assert not run.own_code_ran()
    run.model[0].bias.requires_grad_(False)
    assert run.own_code_ran(settle)
    assert not run.own_code_ran()
    run.model[2] = nn.Linear(8, CLASSES)
    assert run.own_code_ran()


def twice(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[1].train(),
        lambda model: model[0].register_forward_hook(twice),
        lambda model: setattr(model[0], "forward", lambda x: F.linear(x, model[0].weight)),
    ],
    ids=["random numbers", "hook", "forward"],
)
def test_code_that_is_not_torchs_ends_it(change: Callable[[nn.Sequential], object]) -> None:
    run = Counted(network(), on_trust=False)
    run.own_code_ran()
    assert not run.own_code_ran()
    change(run.model)
    before = run.ran
    for _ in range(5):
        run()
    assert run.ran == before + 5
    assert not run.programs.proven


def test_a_setting_that_changes_counts_at_once() -> None:
    run = Counted(nn.Sequential(nn.Linear(6, CLASSES), nn.LeakyReLU(0.1)), on_trust=False)
    run.own_code_ran()
    assert not run.own_code_ran()
    run.model[1].negative_slope = 0.5
    assert run.own_code_ran()  # which compares with the model as it is now
    assert not run.own_code_ran(3)


class Own(nn.Linear):
    """A subclass, which may read anything."""


def test_other_models_are_not_recorded_unless_on_trust() -> None:
    assert Counted(nn.Sequential(Own(6, CLASSES)), on_trust=False).own_code_ran(10)
    run = Counted(nn.Sequential(Own(6, CLASSES)))
    run.own_code_ran(4)
    assert not run.own_code_ran()


def test_a_recording_does_not_depend_on_records() -> None:
    torch.manual_seed(0)
    found = []
    for scale in (1.0, 1e30, float("nan")):
        batch = scale * torch.randn(9, 6), torch.randint(CLASSES, (9,))
        given = Given.of(batch, None, 9)
        assert given is not None
        found.append(given.made_up(5, torch.Generator().manual_seed(0))[2])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


class Unseen(nn.Module):
    """Writes into memory in a way that no operation shows."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * filled_unseen(torch.zeros(1), 2.0)


def test_a_program_that_gives_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.gradients.programs._COMPARED", 0)
    assert Counted(Unseen()).own_code_ran(10)


class Watching(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_nothing_is_recorded_under_a_mode_of_someone_elses() -> None:
    run = Counted(network(), on_trust=False)
    run.own_code_ran()
    with Watching():
        assert run.own_code_ran(3)
    assert not run.own_code_ran(3)


class Labelled(Tensor):
    """Its code would be given all records."""


def test_tensors_with_code_of_their_own_are_not_given_to_a_program() -> None:
    x, y = torch.randn(9, 6), torch.randint(CLASSES, (9,))
    assert Given.of((x, y), None, 9) is not None
    assert Given.of((x.as_subclass(Labelled), y), None, 9) is None
    assert Given.of((x.T.contiguous().T, y), None, 9) is None


def test_a_large_model_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.gradients.programs._MOST_BYTES", 10)
    assert Counted(network(), on_trust=False).own_code_ran(10)


def test_the_memory_of_a_run_is_what_it_makes() -> None:
    weight, x = torch.zeros(100, 100), torch.zeros(100)
    made = recorded(lambda: (weight.detach().T @ x).view(10, 10) + 1, (x,), 1)
    assert made.nbytes == 2 * x.nbytes


def test_recording_leaves_the_generators_alone() -> None:
    run = Counted(network(), on_trust=False)
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(3), random.random()
    batch = batch_of(run.make, 6)
    torch.manual_seed(1)
    random.seed(1)
    own = capture(run.model, module_losses, batch)
    run.programs.run(lambda: own, module_losses, batch, None, 6)
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]


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
    run.own_code_ran(4)
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
    run.own_code_ran(4)
    x, y = torch.randn(5, 6), torch.tensor([0, 1, 2, CLASSES, 0])

    def compute() -> PerSampleGradients:
        raise LookupError("with the model's own line")

    with pytest.raises(LookupError, match="own line"):
        run.programs.run(compute, module_losses, (x, y), None, 5)
