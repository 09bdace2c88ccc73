"""What a watched method is told: the mechanism's own answers, and exact movements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from plumbline import methods
from plumbline.auditing import AuditError, audited
from plumbline.auditing.canary import Canary
from plumbline.auditing.watched import Told, Watched
from plumbline.auditing.world import World
from plumbline.clipping import Flat
from plumbline.mechanism.release import Query
from plumbline.methods import Method


def stepped(method: Method, steps: int = 1, size: float = 10.0, sigma: float = 2.0) -> Any:
    """The run after its steps, with 2,000 idle entries."""
    private = World(method, sigma, 1e-5, 3, seed=0).private(Canary(size), 1.0, steps, 2000)
    for batch in private:
        private.step(batch)
    return private


def told(method: Method, **settings: Any) -> list[Told]:
    found: list[Told] = stepped(method, **settings).method.told
    return found


def test_the_noise_is_that_of_the_mechanism() -> None:
    private = stepped(methods.dpsgd(clip=0.5))
    (one,) = private.method.told
    (answer,) = one.answers
    assert (answer.name, answer.std) == ("gradient", 1.0)
    assert answer.moved == pytest.approx(0.5)
    assert float(answer.noise.std()) == pytest.approx(1.0, rel=0.1)
    # And it is what was released, divided by the expected size.
    released = private.released["second.weight"][4:, 0].double()
    assert torch.allclose(released, answer.noise / 4, atol=1e-6)
    assert torch.equal(one.update_in, released)
    assert torch.equal(one.update_in, one.update_out)


def test_counts_are_asked_with_a_repetition_for_each_idle_entry() -> None:
    (one,) = told(methods.global_adapt(count_noise=3.0), size=1e6)
    gradient, count = one.answers
    assert count.std == 3
    assert count.moved == 1
    assert count.noise.shape == gradient.noise.shape == (2000,)
    assert float(count.noise.std()) == pytest.approx(3, rel=0.1)
    assert abs(float(torch.corrcoef(torch.stack([gradient.noise, count.noise]))[0, 1])) < 0.1
    assert one.moved == pytest.approx((1 / 4 + 1 / 9) ** 0.5)


def test_later_questions_are_compared_on_the_same_answers() -> None:
    """DPSGD-F's bounds follow from its noisy counts: alike in both worlds, or a step would differ
    in its sensitivity.
    """
    for one in told(methods.dpsgd_f(), steps=3):
        counts, gradient = one.answers
        assert counts.moved == 1
        assert gradient.moved <= gradient.std / 2 * (1 + 1e-6)


def test_every_step_has_noise_of_its_own() -> None:
    first, second = (one.answers[0].noise for one in told(methods.dpsgd(), steps=2))
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.1


def test_it_is_the_method_to_training() -> None:
    method = audited("dp_sam")
    watched = Watched(method, 10)
    for name in ("name", "needs_groups", "composition", "together", "unbounded_reason",
                 "one_process_reason", "reads_released"):  # fmt: skip
        assert getattr(watched, name) == getattr(method, name)
    assert watched.queries(2.0) == method.queries(2.0)
    watched.load_state_dict(watched.state_dict())


class AsksMore(Method):
    """Asks a second time if there are many records."""

    def step(self, batch: Any) -> Any:
        update = yield from super().step(batch)
        if len(batch) > 3:
            yield Query(value=torch.zeros(1), sensitivity=1.0, sigma=1.0, name="more")
        return update


class BoundByTheData(Flat):
    """A bound that is taken from the records: a question that gives them away by itself."""

    def factors(self, norms: Any, groups: Any = None) -> Any:
        object.__setattr__(self, "clip", float(norms.max()))
        return super().factors(norms, groups)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: AsksMore("more", (), Flat(1.0)), "with the canary and not without"),
        (
            lambda: methods.compose(clipping=BoundByTheData(1.0)),
            "the question itself depends on the records",
        ),
    ],
)
def test_questions_that_depend_on_the_records(method: Callable[[], Method], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        stepped(method())
