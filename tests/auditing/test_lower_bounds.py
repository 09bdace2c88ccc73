"""Bounds on epsilon from what was told apart: true as often as they say, and not too low."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy import optimize, special, stats

from plumbline.auditing.lower_bounds import (
    LowerBound,
    clopper_pearson,
    gaussian_dp,
    gaussian_epsilon,
    one_run,
    threshold_test,
)
from plumbline.mechanism.accountant import epsilon as epsilon_of
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, StepRelease

SURE = 1 - 1e-6
DELTA = 1e-5


def claimed(sigma: float, rate: float = 1.0, delta: float = DELTA) -> float:
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=sigma)
    release = StepRelease(sampling=PoissonSampling(rate=rate), queries=(query,))
    return epsilon_of([(release, 1)], delta=delta)


def gaussians(
    draw: np.random.Generator, count: int, mu: float = 1.0, rate: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    inside = draw.standard_normal(count) + mu * (draw.random(count) < rate)
    return inside, draw.standard_normal(count)


# Counting


def test_counting_is_the_logarithm_of_two_exact_bounds() -> None:
    found = clopper_pearson(900, 1000, 20, 1000, delta=0.01, confidence=0.9)
    least = stats.beta.ppf(0.05, 900, 101)
    most = stats.beta.ppf(0.95, 21, 980)
    assert found.epsilon == pytest.approx(math.log((least - 0.01) / most))
    assert (found.how, found.trials) == ("Clopper-Pearson", 1000)


def test_counting_takes_the_better_of_both_directions() -> None:
    # "Out" is said of the canary only once: it is the rarity of a miss that tells.
    missed = clopper_pearson(999, 1000, 900, 1000, delta=0, confidence=0.9)
    found = clopper_pearson(100, 1000, 1, 1000, delta=0, confidence=0.9)
    assert missed.epsilon == pytest.approx(found.epsilon)
    assert found.epsilon > 2


@pytest.mark.parametrize(("inside", "outside"), [(0, 0), (1000, 1000), (500, 500), (0, 1000)])
def test_counting_shows_nothing_where_there_is_nothing(inside: int, outside: int) -> None:
    assert clopper_pearson(inside, 1000, outside, 1000, delta=0, confidence=0.9).epsilon < 10
    if inside == outside:
        assert clopper_pearson(inside, 1000, outside, 1000, delta=0, confidence=0.9).epsilon == 0


def test_counting_of_a_perfect_test_is_limited_by_the_trials() -> None:
    found = clopper_pearson(1000, 1000, 0, 1000, delta=0, confidence=SURE)
    each = -math.expm1(math.log(5e-7) / 1000)
    assert found.epsilon == pytest.approx(math.log((1 - each) / each))


def test_a_threshold_is_found_where_most_is_to_be_told() -> None:
    inside, outside = gaussians(np.random.default_rng(0), 200_000)
    found = threshold_test(inside, outside, delta=DELTA, confidence=0.95)
    thresholds = np.linspace(-5, 5, 201)
    best = max(
        clopper_pearson(
            int((inside > t).sum()), 200_000, int((outside > t).sum()), 200_000,
            delta=DELTA, confidence=0.95,
        ).epsilon
        for t in thresholds
    )  # fmt: skip
    assert 0.9 * best < found.epsilon < best
    assert found.trials == 180_000
    assert found.confidence == 0.95


# Gaussian DP


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_the_epsilon_of_a_gaussian_is_that_of_the_formula(mu: float, delta: float) -> None:
    found = gaussian_epsilon(mu, delta)
    if found == 0:
        assert 2 * stats.norm.cdf(mu / 2) - 1 <= delta
        return
    tail = math.exp(found + special.log_ndtr(-mu / 2 - found / mu))
    assert stats.norm.cdf(mu / 2 - found / mu) - tail == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.1), (0.5, 0.01)])
def test_it_lies_just_below_the_accountant_s(sigma: float, rate: float) -> None:
    # Without any doubt about mu, what is left is the accountant's rounding up.
    draw = np.random.default_rng(0)
    inside, outside = gaussians(draw, 200_000, 1 / sigma)
    inside += 1 / sigma - (inside.mean() - outside.mean())
    spread = math.sqrt((inside.var() + outside.var()) / 2)
    found = gaussian_dp(
        inside / spread, outside / spread, delta=DELTA, confidence=0.5, sampling_rate=rate
    ).epsilon
    assert 0.98 * claimed(sigma, rate) < found <= claimed(sigma, rate)


def test_mu_is_bounded_as_the_noncentral_t_distribution_does() -> None:
    inside, outside = gaussians(np.random.default_rng(1), 50, 2.0)
    found = gaussian_dp(inside, outside, delta=DELTA, confidence=0.99)
    t = stats.ttest_ind(inside, outside).statistic
    mu = optimize.brentq(lambda mu: stats.nct.sf(t, 98, mu * math.sqrt(50 / 2)) - 0.01, 0, 3)
    assert found.epsilon == pytest.approx(gaussian_epsilon(mu, DELTA), rel=1e-6)


def test_scores_that_are_lower_with_the_canary_show_nothing() -> None:
    inside, outside = gaussians(np.random.default_rng(0), 2000)
    assert gaussian_dp(outside, inside, delta=DELTA, confidence=0.95).epsilon == 0


def test_two_thousand_repetitions_reach_four_fifths() -> None:
    draw = np.random.default_rng(0)
    shares = {
        confidence: np.mean(
            [
                gaussian_dp(*gaussians(draw, 2000), delta=DELTA, confidence=confidence).epsilon
                for _ in range(40)
            ]
        )
        / claimed(1.0)
        for confidence in (0.999, SURE)
    }
    assert 0.80 < shares[SURE] < 0.84
    assert 0.87 < shares[0.999] < 0.91


@pytest.mark.slow
def test_counting_needs_three_million_repetitions_for_as_much() -> None:
    draw = np.random.default_rng(0)
    shares = [
        threshold_test(*gaussians(draw, 3_000_000), delta=DELTA, confidence=0.95).epsilon
        / claimed(1.0)
        for _ in range(5)
    ]
    assert 0.75 < np.mean(shares) < max(shares) < 1


# A bound is true as often as it says


def simulated(one: Callable[[np.random.Generator], LowerBound], truth: float, times: int) -> float:
    """How often a bound lies above the truth."""
    draw = np.random.default_rng(0)
    return sum(one(draw).epsilon > truth for _ in range(times)) / times


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_bounds_by_counting_are_true_often_enough(rate: float) -> None:
    delta = 0.02
    wrong = simulated(
        lambda draw: threshold_test(*gaussians(draw, 400, rate=rate), delta=delta, confidence=0.8),
        claimed(1.0, rate, delta),
        300,
    )
    assert wrong < 0.2


def test_bounds_by_gaussian_dp_are_true_as_often_as_they_say() -> None:
    wrong = simulated(
        lambda draw: gaussian_dp(*gaussians(draw, 40), delta=DELTA, confidence=0.8),
        gaussian_epsilon(1.0, DELTA),
        300,
    )
    assert wrong == pytest.approx(0.2, abs=0.06)  # the noncentral t is exact


@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_bounds_by_one_run_are_true_as_often_as_they_say(delta: float) -> None:
    """Randomised response: each coin told truly with probability e/(1 + e), or given away."""
    truth, canaries = 1.0, 1000

    @cache
    def bound(correct: int) -> LowerBound:
        return one_run(correct, canaries, canaries, delta=delta, confidence=0.8)

    def told(draw: np.random.Generator) -> LowerBound:
        given_away = draw.random(canaries) < delta
        right = (draw.random(canaries) < special.expit(truth)) | given_away
        return bound(int(right.sum()))

    wrong = simulated(told, truth, 300)
    assert wrong < 0.25
    if delta == 0:
        assert wrong > 0.1  # not wasteful


def test_one_run_comes_near_the_truth_with_many_canaries() -> None:
    right = round(20_000 * special.expit(2.0))
    assert 1.9 < one_run(right, 20_000, 20_000, delta=0, confidence=0.95).epsilon < 2


@pytest.mark.parametrize(("correct", "guesses", "canaries"), [(40, 50, 80), (95, 100, 1000)])
def test_one_run_is_the_theorem(correct: int, guesses: int, canaries: int) -> None:
    delta = 1e-5
    found = one_run(correct, guesses, canaries, delta=delta, confidence=0.95).epsilon

    def likely(epsilon: float) -> float:
        tail = [
            sum(
                math.comb(guesses, k) * special.expit(epsilon) ** k
                * special.expit(-epsilon) ** (guesses - k)
                for k in range(max(0, v), guesses + 1)
            )
            for v in range(correct, -1, -1)
        ]  # fmt: skip
        worst = max((tail[i] - tail[0]) / i for i in range(1, correct + 1))
        return tail[0] + 2 * canaries * delta * worst

    assert likely(found) == pytest.approx(0.05, rel=1e-6)
    assert found < one_run(correct, guesses, canaries, delta=0, confidence=0.95).epsilon


def test_one_run_shows_nothing_by_guessing_blindly() -> None:
    assert one_run(500, 1000, 1000, delta=1e-6, confidence=0.95).epsilon == 0
    assert one_run(0, 0, 10, delta=1e-6, confidence=0.95).epsilon == 0


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clopper_pearson(2, 1, 0, 1, delta=0, confidence=0.9), "2 hits in 1 trials"),
        (lambda: clopper_pearson(1, 1, 0, 1, delta=-1, confidence=0.9), "delta is -1"),
        (lambda: clopper_pearson(1, 1, 0, 1, delta=0, confidence=1), "confidence is 1"),
        (lambda: threshold_test([1.0], [1.0, 2.0], delta=0, confidence=0.9), "scores_in"),
        (lambda: gaussian_dp([1, 2], [1, math.nan], delta=0, confidence=0.9), "scores_out"),
        (lambda: gaussian_dp([1, 1], [0, 0], delta=0, confidence=0.9), "do not vary"),
        (
            lambda: gaussian_dp([1, 2], [1, 2], delta=0, confidence=0.9, sampling_rate=0),
            "sampling_rate is 0",
        ),
        (lambda: one_run(5, 4, 10, delta=0, confidence=0.9), "5 correct of 4 guesses"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], LowerBound], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_bound_refutes_only_what_lies_below_it() -> None:
    bound = LowerBound(2.0, DELTA, 0.95, "one run", 100)
    assert bound.refutes(1.9)
    assert not bound.refutes(2.0)
    assert not bound.refutes(math.inf)
