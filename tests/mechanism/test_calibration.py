"""Budgets: exact numbers, noise that is never rounded down, and errors that help."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.mechanism import calibration
from plumbline.mechanism.accountant import Accountant, Relation, epsilon
from plumbline.mechanism.calibration import Budget, BudgetError, calibrate_noise
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, Sampling, StepRelease

GOOD = {"epsilon": 3.0, "delta": 1e-6, "epochs": 10, "expected_batch_size": 100}


def budget(**changes: Any) -> Budget:
    return Budget(**{**GOOD, **changes})


def given_noise(**changes: Any) -> Budget:
    """A budget whose plan needs no accountant search."""
    return budget(**{"epsilon": None, "noise_multiplier": 0.0, "delta": 1e-12, **changes})


def with_counts(noise_multiplier: float, sampling: Sampling) -> StepRelease:
    """A gradient, a count of fixed noise, and one whose noise is in proportion."""
    asked = (("gradient", noise_multiplier), ("above", 10.0), ("groups", 10 * noise_multiplier))
    return StepRelease(
        sampling=sampling,
        queries=tuple(
            GaussianQuery(name=name, sensitivity=1.0, noise_multiplier=sigma)
            for name, sigma in asked
        ),
    )


def steps_of(n: int, **changes: Any) -> int:
    return given_noise(**changes).resolve(n).steps


SIZES = [*range(1, 3001), 23_512, 48_336, 54_649, 162_770, 10**6 + 3, 10**7 - 1, 10**8 + 7, 10**9]


def test_one_epoch_of_single_records_takes_exactly_n_steps() -> None:
    """`int(1 / (1 / n))` is n - 1 for n = 49, 98, 103 and many more."""
    assert any(int(1 / (1 / n)) != n for n in SIZES)
    for n in SIZES:
        assert steps_of(n, epochs=1, expected_batch_size=1) == n
        assert steps_of(n, epochs=1, expected_batch_size=None, sampling_rate=1 / n) == n


@given(
    n=st.integers(min_value=1, max_value=10**8),
    share=st.fractions(min_value=0, max_value=1),
    epochs=st.integers(min_value=1, max_value=500),
)
def test_steps_rates_and_batch_sizes_are_exact(n: int, share: Fraction, epochs: int) -> None:
    batch = max(1, math.floor(share * n))
    by_size = given_noise(epochs=epochs, expected_batch_size=batch).resolve(n)
    rate = batch / n
    by_rate = given_noise(epochs=epochs, expected_batch_size=None, sampling_rate=rate).resolve(n)
    exact = -(-epochs * n // batch)
    for plan in (by_size, by_rate):
        assert plan.steps == exact
        assert plan.sampling_rate == rate
        assert plan.expected_batch_size == batch
        assert plan.release.sampling == PoissonSampling(rate=rate)


@pytest.mark.parametrize(
    ("rate", "epochs", "steps"),
    [
        (0.01, 1, 100),
        (0.1, 0.1, 1),
        (0.01, 0.3, 30),
        (0.08192, 75, 916),
        (1 / 25, 30, 750),
        (1, 7, 7),
    ],
)
def test_decimal_rates_and_epochs_mean_what_they_say(
    rate: float, epochs: float, steps: int
) -> None:
    settings = {"epochs": epochs, "expected_batch_size": None, "sampling_rate": rate}
    assert steps_of(50_000, **settings) == steps


def test_a_rate_that_is_no_simple_fraction_is_taken_as_it_is() -> None:
    rate = math.pi / 1000
    plan = given_noise(epochs=1, expected_batch_size=None, sampling_rate=rate).resolve(10_000)
    assert plan.sampling_rate == rate
    assert plan.steps == 319
    assert plan.expected_batch_size == 31


def test_the_expected_batch_size_is_at_least_one() -> None:
    plan = given_noise(expected_batch_size=None, sampling_rate=1e-4).resolve(100)
    assert plan.expected_batch_size == 1


def test_given_steps_are_kept() -> None:
    assert steps_of(1000, epochs=None, steps=77) == 77
    assert steps_of(1000, epochs=None, steps=np.int64(77)) == 77


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("target", [0.3, 3.0, 30.0])
def test_the_noise_meets_the_budget_and_not_much_more(
    accountant: Accountant, relation: Relation, target: float
) -> None:
    plan = budget(epsilon=target).resolve(10_000, accountant=accountant, relation=relation)
    releases = [(plan.release, plan.steps)]
    spent = epsilon(releases, delta=1e-6, accountant=accountant, relation=relation)
    assert plan.epsilon == spent
    assert (1 - 1e-3) * target <= spent <= target
    assert plan.release.noise_multiplier == plan.noise_multiplier


@settings(max_examples=6)
@given(
    target=st.floats(min_value=0.1, max_value=20),
    rate=st.floats(min_value=0.005, max_value=1),
    steps=st.integers(min_value=1, max_value=2000),
)
def test_any_budget_is_met_from_below(target: float, rate: float, steps: int) -> None:
    settings = {"epochs": None, "steps": steps, "expected_batch_size": None, "sampling_rate": rate}
    plan = budget(epsilon=target, **settings).resolve(1000, accountant="rdp")
    assert (1 - 1e-3) * target <= plan.epsilon <= target


def test_extra_queries_are_part_of_the_calibration() -> None:
    plain = budget().resolve(10_000)
    counted = budget().resolve(10_000, release_at=with_counts)
    assert [query.noise_multiplier for query in counted.release.queries] == [
        counted.noise_multiplier,
        10.0,
        10 * counted.noise_multiplier,
    ]
    assert counted.noise_multiplier > plain.noise_multiplier
    # Together they are the same mechanism as the plain gradient alone.
    assert counted.release.noise_multiplier == pytest.approx(plain.noise_multiplier, rel=2e-3)
    assert counted.epsilon <= 3


def test_queries_that_alone_exceed_the_budget_are_named() -> None:
    with pytest.raises(BudgetError, match=r"unlimited noise.*above \(noise 10\).*Raise epsilon"):
        budget(epsilon=0.1, epochs=50).resolve(10_000, release_at=with_counts)


def test_a_method_without_a_guarantee_cannot_be_calibrated() -> None:
    def mixing(noise_multiplier: float, sampling: Sampling) -> StepRelease:
        release = calibration.gradient_only(noise_multiplier, sampling)
        return dataclasses.replace(release, unbounded_reason="records mix")

    with pytest.raises(BudgetError, match=r"no guarantee.*records mix.*noise_multiplier"):
        budget().resolve(10_000, release_at=mixing)
    plan = budget(epsilon=None, noise_multiplier=1.0).resolve(10_000, release_at=mixing)
    assert plan.epsilon == math.inf


def test_given_noise_is_kept_and_its_epsilon_computed() -> None:
    plan = budget(epsilon=None, noise_multiplier=1.0).resolve(10_000)
    assert plan.noise_multiplier == 1.0
    assert plan.epsilon == epsilon([(plan.release, plan.steps)], delta=1e-6)
    assert given_noise().resolve(10_000).epsilon == math.inf


def test_a_generous_budget_stops_at_the_least_noise() -> None:
    found = calibrate_noise(
        lambda sigma: calibration.gradient_only(sigma, PoissonSampling(rate=0.5)),
        steps=1,
        epsilon=1e7,
        delta=1e-6,
    )
    assert 0.01 <= found < 0.02


def test_a_cost_that_jumps_past_the_budget_is_met_on_the_safe_side() -> None:
    """Below a noise multiplier of 0.1 the answer is RDP's, which here is far above PLD's."""
    found = calibrate_noise(
        lambda sigma: calibration.gradient_only(sigma, PoissonSampling(rate=1e-9)),
        steps=1,
        epsilon=1.0,
        delta=1e-6,
    )
    assert found == pytest.approx(0.1)


def test_a_public_number_of_records_replaces_the_size_of_the_data() -> None:
    taken = given_noise().resolve(1234)
    stated = given_noise(records=2000).resolve(1234)
    assert (taken.records, taken.records_public) == (1234, False)
    assert (stated.records, stated.records_public) == (2000, True)
    assert stated.sampling_rate == 100 / 2000
    assert stated.steps == 200


@pytest.mark.parametrize(("delta", "warned"), [(1e-5, False), (1.1e-5, True), (9.9e-5, True)])
def test_a_large_delta_is_noted_in_the_plan(delta: float, warned: bool) -> None:
    plan = given_noise(delta=delta).resolve(10_000)
    assert len(plan.warnings) == warned
    if warned:
        assert "at most 1e-5" in plan.warnings[0]


@given(st.integers(min_value=1, max_value=10**12))
def test_the_advised_delta_is_rounded_down(n: int) -> None:
    advised = Fraction(calibration._advised_delta(n))
    assert Fraction(1, 20 * n) <= advised <= Fraction(1, 10 * n)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0}, "epsilon is 0; it must be positive"),
        ({"epsilon": -1.0}, "epsilon is -1.0; it must be positive"),
        ({"epsilon": math.inf}, "noise_multiplier=0"),
        ({"epsilon": math.nan}, "epsilon is nan"),
        ({"delta": 0}, "delta is 0; it must be strictly between 0 and 1"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"epsilon": None}, "neither epsilon nor noise_multiplier; give exactly one"),
        ({"noise_multiplier": 1.0}, "both epsilon and noise_multiplier; give exactly one"),
        ({"steps": 10}, "both epochs and steps"),
        ({"epochs": None}, "neither epochs nor steps"),
        ({"sampling_rate": 0.1}, "both expected_batch_size and sampling_rate"),
        ({"expected_batch_size": 0}, "expected_batch_size is 0; it must be a whole number"),
        ({"expected_batch_size": 1.5}, "expected_batch_size is 1.5"),
        ({"expected_batch_size": True}, "expected_batch_size is True"),
        ({"expected_batch_size": None, "sampling_rate": 1.5}, "sampling_rate is 1.5.*at most 1"),
        ({"expected_batch_size": None, "sampling_rate": 0.0}, "sampling_rate is 0.0.*above 0"),
        ({"epochs": 0}, "epochs is 0; it must be positive"),
        ({"epochs": None, "steps": 0}, "steps is 0; it must be a whole number of at least 1"),
        ({"epochs": None, "steps": 2.0}, "steps is 2.0; it must be a whole number"),
        ({"records": -5}, "records is -5"),
        ({"epsilon": None, "noise_multiplier": -1.0}, "noise_multiplier is -1.0"),
        ({"epsilon": None, "noise_multiplier": math.inf}, "noise_multiplier is inf"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        budget(**changes)


@pytest.mark.parametrize(
    ("n", "changes", "message"),
    [
        (99, {}, "expected_batch_size is 100, more than the 99 records; it must be at most 99"),
        (1000, {"delta": 1e-3}, r"delta is 0.001 and there are 1000 records.*Choose at most 1e-4"),
        (1000, {"delta": 0.01}, r"below 1/1000 = 0.001"),
        (0, {}, "number of records is 0"),
        (1000, {"expected_batch_size": None}, "neither expected_batch_size nor sampling_rate"),
        (10_000, {"records": 50}, "more than the 50 records"),
    ],
)
def test_a_budget_that_does_not_fit_the_data_is_refused(
    n: int, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BudgetError, match=message):
        budget(**changes).resolve(n)


def test_errors_are_value_errors_and_budgets_are_frozen_and_by_keyword() -> None:
    assert issubclass(BudgetError, ValueError)
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget().epsilon = 9.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Budget(1e-5, 3.0)  # type: ignore[call-arg]
