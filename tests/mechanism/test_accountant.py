"""Accountants against papers, closed forms and each other; the curve never under-states."""

import dataclasses
import math
from collections.abc import Callable

import dp_accounting
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from plumbline.mechanism import accountant as accounting
from plumbline.mechanism.accountant import Accountant, EpsilonCurve, Relation, epsilon
from plumbline.mechanism.calibration import calibrate_noise
from plumbline.mechanism.release import FullBatch, GaussianQuery, PoissonSampling, StepRelease

DELTA = 1e-6


def step(rate: float, *noise: float, reason: str | None = None) -> StepRelease:
    asked = tuple(
        GaussianQuery(name="query", sensitivity=1.0, noise_multiplier=sigma) for sigma in noise
    )
    return StepRelease(sampling=PoissonSampling(rate=rate), queries=asked, unbounded_reason=reason)


def cost(
    rate: float,
    steps: int,
    *noise: float,
    accountant: Accountant = "pld",
    relation: Relation = "add_remove",
    delta: float = DELTA,
) -> float:
    releases = [(step(rate, *noise), steps)]
    return epsilon(releases, delta=delta, accountant=accountant, relation=relation)


def analytic_gaussian(mu: float, delta: float) -> float:
    """Epsilon of Gaussian noise of 1/mu times the sensitivity (Balle and Wang 2018, theorem 8)."""

    def delta_at(eps: float) -> float:
        upper = stats.norm.cdf(mu / 2 - eps / mu)
        return float(upper - math.exp(eps + stats.norm.logcdf(-mu / 2 - eps / mu)))

    return float(optimize.brentq(lambda eps: delta_at(eps) - delta, 0, 500, xtol=1e-12))


@pytest.mark.parametrize(
    ("rate", "steps", "sigma", "expected"),
    [
        pytest.param(1 / 189, 3780, 1.0, 2.27, id="Dutch"),
        pytest.param(1 / 214, 12840, 0.8, 5.90, id="MNIST"),
        pytest.param(1 / 636, 19080, 0.8, 2.49, id="CelebA"),
        pytest.param(1 / 92, 1840, 1.0, 3.41, id="Adult"),
    ],
)
def test_rdp_gives_the_epsilons_of_paper_004(
    rate: float, steps: int, sigma: float, expected: float
) -> None:
    assert round(cost(rate, steps, sigma, accountant="rdp"), 2) == expected


@pytest.mark.parametrize(
    ("rate", "steps", "sigma", "expected"),
    [
        pytest.param(1 / 92, 1840, 1.0, 3.444, id="Adult"),
        pytest.param(1 / 214, 12840, 0.8, 5.951, id="MNIST"),
    ],
)
def test_counts_on_the_same_batch_are_charged_in_the_same_mechanism(
    rate: float, steps: int, sigma: float, expected: float
) -> None:
    assert round(cost(rate, steps, sigma, 10.0, accountant="rdp"), 3) == expected


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "expected", "prv_upper_bound"),
    [
        (1.5, 0.05, 1000, 6.200, 6.210),
        (0.8, 0.2, 100, 24.32, 24.33),
        (2.0, 0.001, 50000, 0.483, 0.491),
    ],
)
def test_pld_gives_the_reference_epsilons(
    sigma: float, rate: float, steps: int, expected: float, prv_upper_bound: float
) -> None:
    found = cost(rate, steps, sigma)
    assert found == pytest.approx(expected, abs=0.01)
    assert found <= prv_upper_bound


@pytest.mark.parametrize(
    ("rate", "steps", "sigma", "expected"),
    [
        (1 / 189, 3780, 1.0, 2.04),
        (1 / 214, 12840, 0.8, 5.43),
        (1 / 636, 19080, 0.8, 2.03),
        (1 / 92, 1840, 1.0, 3.10),
    ],
)
def test_pld_is_tighter_on_the_papers_runs(
    rate: float, steps: int, sigma: float, expected: float
) -> None:
    assert cost(rate, steps, sigma) == pytest.approx(expected, abs=0.01)


@given(
    rate=st.floats(min_value=1e-3, max_value=1),
    sigma=st.floats(min_value=0.5, max_value=5),
    steps=st.integers(min_value=1, max_value=3000),
)
def test_rdp_is_never_below_pld(rate: float, sigma: float, steps: int) -> None:
    exact = cost(rate, steps, sigma)
    assert cost(rate, steps, sigma, accountant="rdp") >= exact * (1 - 1e-9)
    assert exact > 0


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("sigma", [1e9, 1e308])
def test_any_amount_of_noise_has_a_cost(sigma: float, accountant: Accountant) -> None:
    assert 0 <= cost(0.1, 3, sigma, accountant=accountant) <= cost(0.1, 3, 1e6, accountant="rdp")


@pytest.mark.parametrize("sampling", [FullBatch(), PoissonSampling(rate=1.0)])
@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("sigma", "steps"), [(0.5, 1), (1.0, 1), (5.0, 1), (20.0, 300)])
def test_the_plain_gaussian_has_its_closed_form(
    sampling: FullBatch | PoissonSampling, relation: Relation, sigma: float, steps: int
) -> None:
    asked = GaussianQuery(name="gradient", sensitivity=3.0, noise_multiplier=sigma)
    release = StepRelease(sampling=sampling, queries=(asked,))
    # Replacing one record moves the sum twice as far.
    mu = math.sqrt(steps) / sigma * (2 if relation == "replace_one" else 1)
    exact = analytic_gaussian(mu, DELTA)
    found = epsilon([(release, steps)], delta=DELTA, relation=relation)
    assert exact - 1e-6 <= found <= 1.01 * exact
    rdp = epsilon([(release, steps)], delta=DELTA, accountant="rdp", relation=relation)
    assert found <= rdp <= 1.3 * exact


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (0.6, 0.01), (3.0, 0.5)])
def test_one_sampled_step_is_its_defining_integral(
    sigma: float, rate: float, relation: Relation
) -> None:
    points, width = np.linspace(-40 * sigma, 40 * sigma, 400_001, retstep=True)

    def density(record: float) -> npt.NDArray[np.float64]:
        absent, present = (stats.norm.pdf(points, mean, sigma) for mean in (0.0, record))
        return np.asarray((1 - rate) * absent + rate * present)

    one, other = density(1.0), density(-1.0 if relation == "replace_one" else 0.0)

    def delta_at(eps: float) -> float:
        sides = (one - math.exp(eps) * other, other - math.exp(eps) * one)
        return float(width * max(np.maximum(side, 0).sum() for side in sides))

    exact = float(optimize.brentq(lambda eps: delta_at(eps) - DELTA, 0, 60))
    assert cost(rate, 1, sigma, relation=relation) == pytest.approx(exact, rel=1e-4)


def test_dp_sam_needs_root_two_more_noise_not_twice() -> None:
    """Two equal gradient queries on one batch (methods.md A3); paper 002 charges 2.06 times."""
    rate, steps, target = 1 / 25, 750, 3.0

    def noise_for(queries: int) -> float:
        return calibrate_noise(
            lambda sigma: step(rate, *[sigma] * queries), steps=steps, epsilon=target, delta=1e-5
        )

    assert noise_for(2) / noise_for(1) == pytest.approx(1.414, abs=0.005)


@pytest.mark.parametrize("rate", [0.5, 0.01])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_replacing_costs_more_than_adding_and_at_most_group_privacy(
    rate: float, accountant: Accountant
) -> None:
    added = cost(rate, 200, 2.0, accountant=accountant)
    replaced = cost(rate, 200, 2.0, accountant=accountant, relation="replace_one")
    pair = cost(rate, 200, 2.0, accountant="rdp", relation="replace_one")
    assert added < replaced <= pair


def test_group_privacy_is_solved_for_the_delta_asked_for() -> None:
    pair = cost(0.01, 1000, 1.0, accountant="rdp", relation="replace_one")
    single = pair / 2
    smaller = DELTA / (1 + math.exp(single))
    assert cost(0.01, 1000, 1.0, accountant="rdp", delta=smaller) == pytest.approx(single, rel=1e-6)
    assert smaller * (1 + math.exp(single)) <= DELTA * (1 + 1e-9)


def test_group_privacy_of_a_cheap_run_is_free() -> None:
    assert cost(1e-4, 1, 50.0, accountant="rdp", relation="replace_one", delta=0.01) == 0


def test_group_privacy_without_a_solution_is_infinite() -> None:
    assert accounting._epsilon_of_pairs(lambda delta: 1000.0, 1e-6) == math.inf


def test_order_and_splitting_do_not_matter() -> None:
    one, other = step(0.01, 1.0), step(0.02, 1.5)
    whole = epsilon([(one, 100), (other, 50)], delta=DELTA)
    assert epsilon([(other, 20), (one, 60), (other, 30), (one, 40)], delta=DELTA) == whole
    assert whole > max(epsilon([(one, 100)], delta=DELTA), epsilon([(other, 50)], delta=DELTA))


def test_sensitivities_that_change_along_a_run_do_not_change_its_cost() -> None:
    small, large = (
        StepRelease(
            sampling=PoissonSampling(rate=0.01),
            queries=(GaussianQuery(name="gradient", sensitivity=bound, noise_multiplier=1.0),),
        )
        for bound in (0.1, 10.0)
    )
    assert epsilon([(small, 50), (large, 50)], delta=DELTA) == cost(0.01, 100, 1.0)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_basic_composition_adds_up_what_queries_cost_alone_where_that_is_more(
    accountant: Accountant,
) -> None:
    both = step(0.04, 1.5, 3.0)
    basic = dataclasses.replace(both, composition="basic")
    first, second = (
        epsilon([(step(0.04, noise), 50)], delta=5e-6, accountant=accountant)
        for noise in (1.5, 3.0)
    )
    found = epsilon([(basic, 50)], delta=1e-5, accountant=accountant)
    assert found == pytest.approx(first + second, rel=1e-12)
    assert found > epsilon([(both, 50)], delta=1e-5, accountant=accountant)


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 100), (0.01, 0.8377, 2000)])
def test_basic_composition_costs_no_less_than_joint(
    rate: float, noise: float, steps: int, accountant: Accountant, relation: Relation
) -> None:
    """The batch is drawn once: at little noise the queries cost more than alone, added up."""
    both = step(rate, noise, noise)
    basic = dataclasses.replace(both, composition="basic")
    found, joint = (
        epsilon([(one, steps)], delta=1e-5, accountant=accountant, relation=relation)
        for one in (basic, both)
    )
    alone = cost(rate, steps, noise, accountant=accountant, relation=relation, delta=5e-6)
    assert found >= joint
    if accountant == "pld" and relation == "add_remove":
        assert 2 * alone < found == joint


def test_the_sum_of_what_queries_cost_alone_is_no_bound() -> None:
    """DP-SAM at an epsilon of 8 by paper 002's theorem: what is surely spent is more."""
    noise, steps = 0.8377, 2000
    at_least = privacy_loss_distribution.from_gaussian_mechanism(
        noise / 2**0.5,
        pessimistic_estimate=False,
        value_discretization_interval=1e-3,
        sampling_prob=0.01,
        use_connect_dots=False,
    ).self_compose(steps)
    theorem = 2 * cost(0.01, steps, noise, delta=5e-6)
    assert theorem == pytest.approx(8, abs=0.01)
    lower = at_least.get_epsilon_for_delta(1e-5)
    assert theorem < 9.4 < lower < cost(0.01, steps, noise, noise, delta=1e-5)


def test_basic_and_joint_releases_mix() -> None:
    basic = dataclasses.replace(step(0.04, 1.5, 3.0), composition="basic")
    joint = step(0.04, 2.0, 2.0)
    found = epsilon([(basic, 50), (joint, 20)], delta=1e-5)
    parts = [
        epsilon([(step(0.04, 1.5), 50), (joint, 20)], delta=5e-6),
        epsilon([(step(0.04, 3.0), 50)], delta=5e-6),
    ]
    assert found == pytest.approx(sum(parts), rel=1e-12)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_what_has_no_guarantee_costs_infinitely(accountant: Accountant) -> None:
    good = (step(0.01, 1.0), 10)
    assert (
        epsilon([good, (step(0.01, 1.0, 0.0), 1)], delta=DELTA, accountant=accountant) == math.inf
    )
    unbounded = step(0.01, 100.0, reason="records mix")
    assert epsilon([good, (unbounded, 1)], delta=DELTA, accountant=accountant) == math.inf
    assert epsilon([good, (unbounded, 0)], delta=DELTA, accountant=accountant) < math.inf


def test_nothing_released_costs_nothing() -> None:
    assert epsilon([], delta=DELTA) == 0
    assert epsilon([(step(0.1, 1.0), 0)], delta=DELTA) == 0


def test_where_pld_has_no_answer_rdp_gives_it() -> None:
    releases = [(step(0.01, 1.0), 10_000)]
    answers = {epsilon(releases, delta=1e-12, accountant=who) for who in ("pld", "rdp")}
    assert len(answers) == 1


def test_questions_that_make_no_sense_are_refused() -> None:
    releases = [(step(0.1, 1.0), 1)]
    for delta in (0.0, 1.0, -1e-5, math.nan):
        with pytest.raises(ValueError, match="delta"):
            epsilon(releases, delta=delta)
    with pytest.raises(ValueError, match="accountant"):
        epsilon(releases, delta=DELTA, accountant="gdp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="relation"):
        epsilon(releases, delta=DELTA, relation="zero_out")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="-1 times"):
        epsilon([(step(0.1, 1.0), -1)], delta=DELTA)


@pytest.fixture
def slow_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What dp-accounting is asked that takes its time: repetitions, and divergences of a step."""
    accounting._epsilon.cache_clear()
    accounting._one_step.cache_clear()
    made: list[str] = []
    for kind, name in (
        (privacy_loss_distribution.PrivacyLossDistribution, "self_compose"),
        (RdpAccountant, "compose"),
    ):
        real = getattr(kind, name)

        def noted(*args: object, _name: str = name, _real: Callable[..., object] = real) -> object:
            made.append(_name)
            return _real(*args)

        monkeypatch.setattr(kind, name, noted)
    return made


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_ten_thousand_steps_answer_at_once(accountant: Accountant, slow_calls: list[str]) -> None:
    epsilon([(step(0.01, 1.0), 1)] * 10_000, delta=DELTA, accountant=accountant)
    assert len(slow_calls) == 1


@pytest.mark.parametrize("counts", ["equal", "different"])
def test_a_hundred_noise_levels_answer_at_once(counts: str, slow_calls: list[str]) -> None:
    releases = [
        (step(0.01, 0.8 + place / 100), 100 if counts == "equal" else 50 + place)
        for place in range(100)
    ]
    found = epsilon(releases, delta=DELTA)
    # One repetition for each count, or for each binary digit of the counts but the first.
    assert len(slow_calls) == (1 if counts == "equal" else 7)
    if counts == "equal":
        assert found < epsilon(releases, delta=DELTA, accountant="rdp")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_curve_never_understates_and_ends_exactly(accountant: Accountant) -> None:
    release, steps = step(0.01, 1.0), 2000
    curve = EpsilonCurve(release, steps=steps, delta=DELTA, accountant=accountant, points=16)
    end = cost(0.01, steps, 1.0, accountant=accountant)
    values = [curve(done) for done in range(steps + 1)]
    assert values[0] == 0
    assert values == sorted(values)
    assert values[-1] == end
    for done in (1, 2, 7, 8, 9, 100, 333, 1999):
        exact = cost(0.01, done, 1.0, accountant=accountant)
        assert exact <= values[done] <= exact + 0.25 * end
    assert curve(steps + 5) == cost(0.01, steps + 5, 1.0, accountant=accountant)


def test_the_curve_counts_what_came_before() -> None:
    earlier = [(step(0.02, 2.0), 100)]
    curve = EpsilonCurve(step(0.01, 1.0), steps=50, delta=DELTA, before=iter(earlier))
    assert curve(0) == epsilon(earlier, delta=DELTA)
    assert curve(50) == epsilon([*earlier, (step(0.01, 1.0), 50)], delta=DELTA)


def test_the_curve_is_computed_once(slow_calls: list[str]) -> None:
    curve = EpsilonCurve(step(0.01, 1.0), steps=10_000, delta=DELTA, points=8)
    for done in range(10_000):
        curve(done)
    computed = len(slow_calls)
    assert 8 <= computed <= 16
    for done in range(10_000):
        curve(done)
    assert len(slow_calls) == computed


def test_the_curve_of_a_method_without_noise_is_infinite() -> None:
    curve = EpsilonCurve(step(0.01, 0.0), steps=10, delta=DELTA)
    assert curve(0) == 0
    assert curve(1) == math.inf


def test_a_curve_needs_steps() -> None:
    with pytest.raises(ValueError, match="at least one"):
        EpsilonCurve(step(0.01, 1.0), steps=0, delta=DELTA)
    with pytest.raises(ValueError, match="counted from 0"):
        EpsilonCurve(step(0.01, 1.0), steps=1, delta=DELTA)(-1)


def test_divergences_added_up_are_those_of_dp_accounting_composed() -> None:
    pieces = [(0.01, 1.0, 1840), (1.0, 20.0, 1), (0.3, 4.0, 7)]
    composed = RdpAccountant()
    for rate, sigma, count in pieces:
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
        composed.compose(event, count)
    releases = [
        (
            StepRelease(
                sampling=PoissonSampling(rate=rate) if rate < 1 else FullBatch(),
                queries=(GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=sigma),),
            ),
            count,
        )
        for rate, sigma, count in pieces
    ]
    ours = epsilon(releases, delta=1e-5, accountant="rdp")
    assert ours == pytest.approx(composed.get_epsilon(1e-5), rel=1e-12)
