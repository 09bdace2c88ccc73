"""Parts from outside are checked before their first charge: right ones pass, liars are refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline import methods
from plumbline.auditing import NotAdmitted, admission, admit
from plumbline.clipping import Flat, PerGroup
from plumbline.evaluation import Chunk, Evaluation, RecordMomentum, Views
from plumbline.gradients import KERNELS, PerSampleGradients
from plumbline.methods import METHODS, Method, compose, find
from tests.methods.test_contract import BROKEN, made, slow_where


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is admitted yet."""
    monkeypatch.setattr(admission, "_ADMITTED", {})


@pytest.mark.usefixtures("outside")
def test_a_part_from_outside_passes() -> None:
    assert admit(find("outside_parts.rules:Soft").make(clip=0.3)) == ()
    assert admit(find("outside_parts.ways:soft_bam").make()) == ()
    assert admit(find("outside_parts.rules:Halved").make()) == ()


@pytest.mark.usefixtures("outside")
def test_its_lying_twin_is_refused_with_the_figures() -> None:
    with pytest.raises(NotAdmitted) as refused:
        admit(find("outside_parts.rules:SoftLiar").make(clip=0.3))
    message = str(refused.value)
    assert "The method 'SoftLiar' is not admitted, and nothing was charged" in message
    assert "'gradient' moves by 0.45" in message
    assert "not 0.3" in message
    assert "Declare the sensitivity that it has" in message


@dataclass(frozen=True)
class Tolerant(Flat):
    """Clips only what is a fifth longer than the bound."""

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return torch.where(norms < 1.2 * self.clip, 1.0, self.clip / norms)


@dataclass(frozen=True)
class SometimesLies(Flat):
    """Right at most settings."""

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return super().factors(norms, groups) * (2 if self.clip == 3.0 else 1)


def test_a_bound_that_is_missed_by_little_is_found() -> None:
    with pytest.raises(NotAdmitted, match=r"'gradient' moves by 1\.1\d*, not 1,"):
        admit(compose(clipping=Tolerant(1.0)))


def test_the_settings_that_are_used_are_checked() -> None:
    assert admit(compose(clipping=SometimesLies(1.0))) == ()
    with pytest.raises(NotAdmitted):
        admit(compose(clipping=SometimesLies(3.0)))


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_the_contract_is_refused(what: str) -> None:
    make, _ = BROKEN[what]
    with pytest.raises(NotAdmitted):
        admit(make())


class TellsTheSize(Method):
    """Divides by the realised batch size after the answer."""

    def step(self, batch: Any) -> Any:
        update = yield from super().step(batch)
        return {name: g * batch.expected_size / max(len(batch), 1) for name, g in update.items()}


class AsksOtherwise(Method):
    """Asks for more than it declares."""

    def step(self, batch: Any) -> Any:
        yield from super().step(batch)
        return (yield from super().step(batch))


@pytest.mark.parametrize("kind", [TellsTheSize, AsksOtherwise])
def test_a_method_s_own_step_is_checked(kind: type[Method]) -> None:
    with pytest.raises(NotAdmitted, match=r"which is not asked for|is declared and charged"):
        admit(kind("own", (), Flat(1.0)))


def test_what_comes_with_the_package_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_unchecked", None)
    for entry in METHODS.values():
        assert admit(entry.make(**entry.example())) == ()


def test_what_has_no_guarantee_is_not_checked() -> None:
    assert admit(compose(clipping=SometimesLies(3.0), noisy=False)) == ()


def test_a_method_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(admission, "_unchecked", lambda method, names: done.append(names) or ())
    for clip in (1.0, 2.0, 1.0, 1):
        admit(compose(clipping=Tolerant(clip)))
    assert len(done) == 3  # 1.0, 2.0, and 1, of another type
    function = Views(lambda rows, draws: rows, 2)
    for _ in range(2):
        admit(compose(evaluation=function, clipping=Tolerant(1.0)))
    assert len(done) == 5  # a function is not a plain value: it could be another


@dataclass
class GroupsOfTheirOwn(PerGroup):
    """From outside, and with groups that are not 0 and 1."""


@dataclass
class OwnMomentum(RecordMomentum):
    """From outside, for full batches only."""


@dataclass
class Rows(Evaluation):
    """Needs images."""

    slot = "weights"

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        if chunk.data[0].dim() != 4:
            raise ValueError("These are not images.")
        return chunk.capture()


@pytest.mark.parametrize(
    "method",
    [
        compose(clipping=GroupsOfTheirOwn(0.5, groups=(3, 7, 9))),
        compose(evaluation=OwnMomentum(), clipping=Flat(0.5)),
        # The shipped views are for images; what is from outside is checked without them.
        compose(evaluation=methods.self_augmented().evaluation, clipping=SometimesLies(1.0)),
        compose(
            evaluation=methods.batch_clipping(torch.zeros(2, 1, 8, 8)).evaluation,
            clipping=SometimesLies(1.0),
        ),
    ],
    ids=lambda method: method.name,
)
def test_nothing_is_refused_wrongly(method: Method) -> None:
    assert admit(method) == ()


def test_views_do_not_hide_a_liar() -> None:
    method = compose(evaluation=methods.self_augmented().evaluation, clipping=SometimesLies(3.0))
    with pytest.raises(NotAdmitted):
        admit(method)


def test_what_cannot_be_checked_is_said() -> None:
    sentences = admit(compose(evaluation=Rows(), clipping=Flat(1.0)))
    assert len(sentences) == 2
    assert "The neighbour contract of tests.auditing.test_admission.Rows could not" in sentences[0]
    assert "ValueError: These are not images." in sentences[0]
    assert "The audit of a step of" in sentences[1]


def test_nothing_is_left_behind() -> None:
    method = compose(clipping=GroupsOfTheirOwn(0.5))
    before, state = copy.deepcopy(method), torch.get_rng_state()
    KERNELS.measure = False
    KERNELS.run(("a shape",), {"first": lambda: 1, "other": lambda: 2})
    try:
        admit(method)
        assert not KERNELS.measure
        assert KERNELS.chosen(("a shape",)) == "first"
    finally:
        KERNELS.forget()
    assert method == before
    assert torch.equal(torch.get_rng_state(), state)


@slow_where(lambda name: bool(made(name).evaluation))  # the contract's own test has these
def test_every_method_of_the_package_would_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_PACKAGE", "elsewhere")
    method = made(name)
    fits = name not in ("self_augmented", "batch_clipping")  # the canary has no tokens to blur
    assert admit(method) == () or not fits


class NamedByItself(Method):
    """A method whose class is made in another way than ``Method``, with views for images."""

    def __init__(self) -> None:
        super().__init__("by itself", (Views(lambda rows, draws: rows[:, :2], 2),), Flat(1.0))


def test_a_class_with_an_init_of_its_own_is_checked_too() -> None:
    assert admit(NamedByItself()) == ()
