"""Private selection's cost, against closed forms and simulation."""

import math

import numpy as np
import pytest

from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.calibration import BudgetError
from plumbline.mechanism.random_source import SeededSource
from plumbline.mechanism.release import FullBatch, GaussianQuery, PoissonSampling, StepRelease
from plumbline.mechanism.selection import RandomCount


def step(noise: float, rate: float = 1.0) -> StepRelease:
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=noise)
    sampling = FullBatch() if rate == 1 else PoissonSampling(rate=rate)
    return StepRelease(sampling=sampling, queries=(query,))


def test_the_count_is_geometric() -> None:
    count, source = RandomCount(5.0), SeededSource(0, "test")
    drawn = np.array([count.draw(source.stream("count", n)) for n in range(4000)])
    assert drawn.min() == 1
    assert drawn.mean() == pytest.approx(5.0, abs=4 * 4.5 / math.sqrt(4000))
    assert (drawn == 1).mean() == pytest.approx(0.2, abs=4 * 0.4 / math.sqrt(4000))


def test_selection_costs_more_than_one_run_and_less_than_all_of_them() -> None:
    releases = [(step(1.0, 0.01), 1000)]
    once = epsilon(releases, delta=1e-5, accountant="rdp")
    ten_times = epsilon([(step(1.0, 0.01), 10_000)], delta=1e-5, accountant="rdp")
    chosen = RandomCount(10.0).epsilon(releases, delta=1e-5)
    assert once < chosen < ten_times
    # Papernot and Steinke 2022, Thm 2 with eta = 1: eps' = eps_a + 2 (1 - 1/b) eps_b
    # + 2 log(1/gamma) / b + log(mean) / (a - 1), here at its best orders for one Gaussian.
    noise, delta = 2.0, 1e-6
    orders = np.concatenate([np.arange(1.05, 12, 0.05), np.arange(12, 600)])
    rdp = orders / (2 * noise**2)
    extra = np.min(2 * (1 - 1 / orders) * rdp + 2 * np.log(10.0) / orders)
    curve = rdp + extra + np.log(10.0) / (orders - 1)
    conversion = np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    closed = np.min(curve + conversion)
    ours = RandomCount(10.0).epsilon([(step(noise), 1)], delta=delta)
    assert ours == pytest.approx(closed, rel=0.01)


def test_calibrated_noise_meets_epsilon() -> None:
    count = RandomCount(8.0)

    def releases_at(noise: float) -> list[tuple[StepRelease, int]]:
        return [(step(noise, 0.02), 400), (step(50.0), 1)]

    noise = count.calibrate(releases_at, epsilon=3.0, delta=1e-5)
    assert 2.97 < count.epsilon(releases_at(noise), delta=1e-5) <= 3.0


def test_what_cannot_be_met_is_refused() -> None:
    with pytest.raises(BudgetError, match="selection still costs"):
        RandomCount(8.0).calibrate(
            lambda noise: [(step(noise), 1), (step(0.5), 1)], epsilon=1.0, delta=1e-5
        )
    with pytest.raises(ValueError, match="above 1"):
        RandomCount(1.0)


def test_what_was_asked_once_is_counted_once() -> None:
    step = StepRelease(
        sampling=PoissonSampling(rate=0.04),
        queries=(GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=2.0),),
    )
    asked = StepRelease(
        sampling=FullBatch(),
        queries=(GaussianQuery(name="schema", sensitivity=2.0, noise_multiplier=20.0),),
        delta=1e-7,
    )
    count, each = RandomCount(8.0), [(step, 100)]
    alone = count.epsilon(each, delta=1e-6)
    outside = count.epsilon(each, delta=1e-6, once=[(asked, 1)])
    inside = count.epsilon([*each, (asked, 1)], delta=1e-6 - 1e-7)
    assert alone < outside < inside  # each of the candidates would pay for it
    assert count.epsilon(each, delta=1e-7, once=[(asked, 1)]) == math.inf
