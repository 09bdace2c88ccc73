"""The canary's world is made of the library itself: its accountant, its sampler, its steps."""

import pytest

from plumbline import methods
from plumbline.auditing import audited
from plumbline.auditing.canary import Canary
from plumbline.auditing.world import World
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.release import PoissonSampling, StepRelease
from plumbline.methods import Method


def world(method: Method, sigma: float = 1.0, seed: int | None = 0) -> World:
    return World(method, sigma, delta=1e-5, others=3, seed=seed)


@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (0.5, 2), (0.01, 1)])
def test_what_is_claimed_is_the_accountant_s(rate: float, steps: int) -> None:
    method = methods.global_adapt(count_noise=2.0)
    release = StepRelease(sampling=PoissonSampling(rate=rate), queries=method.queries(1.5))
    expected = epsilon([(release, steps)], delta=1e-5)
    assert world(method, 1.5).claimed(rate, steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "size"), [("dpsgd", 10.0), ("global_scaling", 35.3), ("global_adapt", 1e6)]
)
def test_the_canary_that_moves_answers_farthest_is_taken(name: str, size: float) -> None:
    assert world(audited(name)).farthest() == Canary(size, group=1)


def test_steps_are_told_in_order_and_without_a_trace_in_the_method() -> None:
    method = methods.adaptive()
    first, second = world(method).steps(Canary(10.0), 50, 2)
    assert [answer.name for answer in first.answers] == ["gradient", "norms within the bound"]
    assert first.answers[0].std != second.answers[0].std  # its bound has moved
    assert method.clipping.sensitivity == 1  # and the caller's has not


@pytest.mark.parametrize("seed", [0, None])
def test_who_takes_part_is_drawn_at_the_rate(seed: int | None) -> None:
    drawn = world(methods.dpsgd(), seed=seed)
    first, second = (drawn.taking_part(0.3, 20_000, step) for step in (0, 1))
    assert set(first) == {0.0, 1.0}
    assert first.mean() == pytest.approx(0.3, abs=0.03)
    if seed is not None:
        assert (first * second).mean() == pytest.approx(0.09, abs=0.02)
        assert (first == drawn.taking_part(0.3, 20_000, 0)).all()
    assert drawn.taking_part(1.0, 10, 0).all()
