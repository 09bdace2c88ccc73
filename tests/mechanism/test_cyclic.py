"""Sampling in parts, from the plan to the ledger: counted by how often a record can take part."""

import math
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from plumbline.mechanism.accountant import Accountant, epsilon
from plumbline.mechanism.calibration import Budget, BudgetError, gradient_only
from plumbline.mechanism.ledger import BudgetExceeded, Ledger
from plumbline.mechanism.release import CyclicSampling, PoissonSampling, StepRelease
from plumbline.mechanism.run_ledger import RunLedger
from plumbline.mechanism.shared_ledger import SharedLedger

DELTA = 1e-5


def cyclic(parts: int = 4, rate: float = 0.2, cycle: str = "", noise: float = 1.5) -> StepRelease:
    return gradient_only(noise, CyclicSampling(rate=rate, parts=parts, cycle=cycle))


def cost(participations: int, rate: float = 0.2, accountant: Accountant = "pld") -> float:
    step = gradient_only(1.5, PoissonSampling(rate=rate))
    return epsilon([(step, participations)], delta=DELTA, accountant=accountant)


@pytest.mark.parametrize(("accountant", "theirs"), [("pld", PLDAccountant), ("rdp", RdpAccountant)])
def test_epsilon_is_that_of_an_independent_composition(accountant: Any, theirs: Any) -> None:
    steps, parts, rate, sigma = 103, 4, 0.2, 1.5
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    composed = theirs().compose(dp_accounting.SelfComposedDpEvent(step, 26))
    found = epsilon([(cyclic(parts, rate), steps)], delta=DELTA, accountant=accountant)
    assert found == pytest.approx(composed.get_epsilon(DELTA), rel=1e-3)


def test_parts_that_are_taken_whole_cost_what_a_plain_gaussian_costs() -> None:
    # Delta of a Gaussian of noise sigma at epsilon e, in closed form.
    sigma = 1.5 / math.sqrt(3)
    found = epsilon([(cyclic(4, 1.0), 12)], delta=DELTA)
    delta = norm.cdf(0.5 / sigma - found * sigma) - math.exp(found) * norm.cdf(
        -0.5 / sigma - found * sigma
    )
    assert delta == pytest.approx(DELTA, rel=0.02)
    assert delta <= DELTA


@pytest.mark.parametrize(("steps", "times"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_cycle_that_was_begun_counts_as_a_whole(steps: int, times: int) -> None:
    assert epsilon([(cyclic(), steps)], delta=DELTA) == cost(times)


def test_steps_of_two_cycles_are_not_counted_together() -> None:
    one, other = cyclic(cycle="a"), cyclic(cycle="b")
    assert epsilon([(one, 1), (other, 1)], delta=DELTA) == cost(2)
    assert one != other
    assert cyclic().of_run("a") == one
    plain = gradient_only(1.0, PoissonSampling(rate=0.1))
    assert plain.of_run("a") is plain


def test_a_release_survives_json_and_others_are_refused() -> None:
    release = cyclic(cycle="run")
    data = release.to_dict()
    assert data["sampling"] == {"kind": "cyclic", "rate": 0.2, "parts": 4, "cycle": "run"}
    assert StepRelease.from_dict(data) == release
    for wrong in ({"parts": 1}, {"parts": 2.0}, {"parts": True}, {"cycle": 3}, {"rate": 1.2}):
        with pytest.raises(ValueError, match=r"parts|cycle|rate"):
            StepRelease.from_dict({**data, "sampling": {**data["sampling"], **wrong}})
    del data["sampling"]["cycle"]
    with pytest.raises(ValueError, match="cyclic sampling must have exactly"):
        StepRelease.from_dict(data)


def test_a_plan_samples_parts_at_their_rate_and_meets_its_budget() -> None:
    budget = Budget(epsilon=8, delta=DELTA, steps=30, expected_batch_size=10)
    plan = budget.resolve(300, parts=6)
    assert plan.release.sampling == CyclicSampling(rate=60 / 300, parts=6)
    assert plan.sampling_rate == 10 / 300
    assert plan.expected_batch_size == 10
    step = gradient_only(plan.noise_multiplier, PoissonSampling(rate=0.2))
    assert plan.epsilon == epsilon([(step, 5)], delta=DELTA)
    assert 0.999 * 8 <= plan.epsilon <= 8


@pytest.mark.parametrize(
    ("parts", "steps", "problem"),
    [(31, 60, "more than 1. Ask for at most 30 bands"), (9, 8, "more than the run's steps, 8")],
)
def test_parts_that_do_not_fit_are_refused(parts: int, steps: int, problem: str) -> None:
    budget = Budget(epsilon=8, delta=DELTA, steps=steps, expected_batch_size=10)
    with pytest.raises(BudgetError, match=problem):
        budget.resolve(300, parts=parts)


# In a ledger.


def spent(path: Path) -> float:
    return Ledger.read(path).epsilon(DELTA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def test_runs_of_equal_settings_are_rounded_up_each(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for run in ("a", "b"):
            for step in range(2):
                ledger.charge(cyclic().of_run(run).to_dict(), run=run, step=step)
    assert spent(path) == cost(2)


@pytest.mark.parametrize("reserve", [1, 3, 50])
def test_sessions_go_on_in_one_cycle(path: Path, reserve: int) -> None:
    release = cyclic().of_run("a").to_dict()
    for session in range(4):
        with Ledger.open(path, reserve=reserve) as ledger:
            for step in range(3 * session, 3 * session + 3):
                ledger.charge(release, run="a", step=step, most=12)
    assert Ledger.read(path).charged("a") == 12
    assert spent(path) == cost(3)


@pytest.mark.parametrize("reserve", [1, 50])
def test_a_step_that_is_made_twice_counts_by_itself(path: Path, reserve: int) -> None:
    """Two objects go on with one run: steps 0 to 4, and step 4 again."""
    release = cyclic().of_run("a").to_dict()
    with Ledger.open(path, reserve=reserve) as ledger:
        for step in (0, 1, 2, 3, 4, 4):
            ledger.charge(release, run="a", step=step)
        assert ledger.charged("a") == 6
        assert ledger.counted("a") == 9
    assert spent(path) == cost(3)  # part 0 has steps 0, 4 and 4


def test_the_limit_counts_it_too(path: Path) -> None:
    release = cyclic().of_run("a").to_dict()
    with Ledger.open(path, limit=(cost(2), DELTA)) as ledger:
        for step in range(5):
            ledger.charge(release, run="a", step=step)
        with pytest.raises(BudgetExceeded):
            ledger.charge(release, run="a", step=4)
        ledger.charge(release, run="a", step=5)
    assert spent(path) == cost(2)


def test_a_copy_of_a_run_is_counted_by_itself_where_both_are_charged(tmp_path: Path) -> None:
    release, shared = cyclic().of_run("a").to_dict(), tmp_path / "shared.jsonl"
    with RunLedger.within(tmp_path / "one.jsonl", [shared]) as ledger:
        for step in range(5):
            ledger.charge(release, run="a", step=step)
    (tmp_path / "two.jsonl").write_bytes((tmp_path / "one.jsonl").read_bytes())
    for name in ("one.jsonl", "two.jsonl"):
        with RunLedger.within(tmp_path / name, [shared]) as ledger:
            for step in (5, 6, 7):
                ledger.charge(release, run="a", step=step)
        assert spent(tmp_path / name) == cost(2)
    # Steps 5 to 7 were made twice: a record of part 1 took part in 1, 5 and 5.
    assert spent(shared) >= cost(3)


def test_what_a_shared_ledger_lacks_is_entered_in_order(tmp_path: Path) -> None:
    release, own = cyclic().of_run("a").to_dict(), tmp_path / "own.jsonl"
    with Ledger.open(own) as ledger:
        for step in range(6):
            ledger.charge(release, run="a", step=step)
    with RunLedger.within(own, [tmp_path / "shared.jsonl"]) as ledger:
        ledger.charge(release, run="a", step=6)
    assert SharedLedger.read(tmp_path / "shared.jsonl").epsilon(DELTA) == cost(2) == spent(own)


def test_a_torn_line_is_charged_as_if_it_were_out_of_order(path: Path) -> None:
    release = cyclic().of_run("a").to_dict()
    with Ledger.open(path) as ledger:
        for step in (0, 1, 1):
            ledger.charge(release, run="a", step=step)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert spent(path) >= cost(2)


def test_after_a_charge_out_of_order_those_that_follow_on_it_are_counted_together(
    path: Path,
) -> None:
    """As in a shared ledger that has charged a torn line, of which the run knows nothing."""
    release = cyclic().of_run("a").to_dict()
    with Ledger.open(path, reserve=2) as ledger:
        ledger.charge(release, run="a", step=0, count=4)
        for step in range(2, 14):
            ledger.charge(release, run="a", step=step)
    lines = path.read_text().count('"kind":"charge"')
    assert lines == 7  # and nothing was given back for each
    # 4 steps, 12 more, and 3 for the break: 19, which is as much as 1 and 4 participations.
    assert spent(path) == cost(5)
