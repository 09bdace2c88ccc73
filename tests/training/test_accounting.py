from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import plumbline
from plumbline import Ledger, Private
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.ledger import BudgetExceeded, LedgerError, NoiseReuse
from plumbline.mechanism.random_source import RandomSource
from plumbline.sampling import FixedSampler, PoissonSampler, UserSampler
from plumbline.training import BatchRefused, BudgetSpent, RunFinished
from plumbline.training.answering import Answers
from plumbline.training.setup import Setup
from tests.training import small
from tests.training.runs import BUDGET, RECORDS, STEPS, Run, charged, weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


# Batches are drawn as is accounted.


@pytest.mark.parametrize(
    ("sampler", "named"),
    [
        pytest.param(
            lambda rate, source: PoissonSampler(RECORDS, 1.1 * rate, source),
            r"by PoissonSampling\(rate=0\.18.*\), and .* for PoissonSampling\(rate=0\.16.*\):",
            id="another rate",
        ),
        pytest.param(
            lambda rate, source: UserSampler(range(RECORDS), rate / 2, source),
            r"by PoissonSampling\(rate=0\.08.*\), and",
            id="users at another rate",
        ),
        pytest.param(
            lambda rate, source: FixedSampler(RECORDS, 16, source),
            r"by None, and .* for PoissonSampling\(rate=0\.16.*\):",
            id="without an event",
        ),
    ],
)
def test_a_sampler_of_another_event_is_refused(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampler: Callable[[float, RandomSource], Any],
    named: str,
) -> None:
    run = Run()
    run.train(run.make(), 3).save(path)
    monkeypatch.setattr(Setup, "sampler", lambda _, rate, source, parts: sampler(rate, source))
    with pytest.raises(ValueError, match=named):
        Run().make()
    with pytest.raises(ValueError, match=named):
        Run().resume(path)


@pytest.mark.parametrize("unit", ["record", "user"])
def test_a_runs_batches_have_the_rate_that_is_accounted(unit: str) -> None:
    units, steps = 2000, 20
    owners = torch.arange(units) if unit == "record" else torch.arange(2 * units) % units
    private = small.private(
        dataset=small.data(len(owners)),
        plan=small.budget(steps=steps, expected_batch_size=200, delta=1e-5),
        user_ids=owners if unit == "user" else None,
    )
    rate = private.plan.release.sampling.rate
    assert rate == 0.1
    taken = sum(len(owners[indices].unique()) for indices in small.run(private))
    deviation = (units * steps * rate * (1 - rate)) ** 0.5
    assert abs(taken - units * steps * rate) < 3 * deviation  # 1.1 times the rate: 6.7 deviations


# The ledger and the run say the same.


@pytest.mark.parametrize("settings", [{}, {"seed": 1}], ids=["secure", "seeded"])
@pytest.mark.parametrize("steps", [1, 7, STEPS])
def test_the_ledger_alone_knows_the_runs_epsilon(
    path: Path, settings: dict[str, Any], steps: int
) -> None:
    with Ledger.open(path) as ledger:
        run = Run(settings={**settings, "ledger": ledger})
        private = run.train(run.make(), steps)
    with Ledger.open(path) as ledger:
        assert ledger.epsilon(BUDGET.delta) == private.epsilon(exact=True) > 0
    assert charged(path) == steps


@pytest.mark.parametrize("method", ["dpsgd", "dp_sam"])
def test_a_step_is_charged_before_its_first_answer_is_drawn(
    method: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the disk, and once, however many questions the step has."""
    found: list[tuple[int, int]] = []
    answer = Answers.answer

    def watched(self: Answers, query: Any, declared: Any, step: int, *rest: Any) -> Any:
        found.append((step, charged(path)))
        return answer(self, query, declared, step, *rest)

    monkeypatch.setattr(Answers, "answer", watched)
    with Ledger.open(path) as ledger:
        run = Run(settings={"ledger": ledger, "method": plumbline.methods.METHODS[method].make()})
        private = run.train(run.make(), 3)
    questions = len(private.plan.release.queries)
    assert found == [(step, step + 1) for step in range(3) for _ in range(questions)]


def test_steps_reserved_ahead_are_counted_when_they_are_made(path: Path) -> None:
    with Ledger.open(path, reserve=8) as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(), 3)
        assert private.charged == 3
        assert charged(path) == 8  # until the ledger is closed, the file is on the safe side
        run.train(private)
        assert private.charged == STEPS
    assert charged(path) == STEPS
    assert Ledger.read(path).epsilon(BUDGET.delta) == private.epsilon(exact=True)


def test_runs_and_declared_trials_compose(path: Path) -> None:
    delta = BUDGET.delta
    with Ledger.open(path) as ledger:
        first = Run(settings={"ledger": ledger})
        one = first.train(first.make())
        louder = replace(BUDGET, noise_multiplier=2.0, steps=5)
        second = Run(settings={"ledger": ledger, "budget": louder})
        two = second.train(second.make())
        trial = replace(BUDGET, noise_multiplier=1.5).resolve(96).release
        ledger.charge(trial.to_dict(), run="a trial made elsewhere", step=0, count=20)
    together = [(one.plan.release, STEPS), (two.plan.release, 5), (trial, 20)]
    assert Ledger.read(path).epsilon(delta) == epsilon(together, delta=delta)
    assert Ledger.read(path).epsilon(delta) > one.epsilon(exact=True) > two.epsilon(exact=True)
    assert one.charged == STEPS
    assert two.charged == 5


def test_two_private_models_in_one_loop_are_both_charged(path: Path) -> None:
    with Ledger.open(path) as ledger:
        runs = [Run(settings={"ledger": ledger, "seed": seed}) for seed in (1, 2)]
        one, two = (run.make() for run in runs)
        before = [weights(run.model) for run in runs]
        for left, right in zip(one, two, strict=True):
            one.step(left)
            two.step(right)
        assert (one.charged, two.charged) == (STEPS, STEPS)
        assert one.run != two.run
        for run, weight in zip(runs, before, strict=True):
            assert not torch.equal(weights(run.model), weight)
    assert charged(path) == 2 * STEPS
    both = epsilon([(one.plan.release, 2 * STEPS)], delta=BUDGET.delta)
    assert Ledger.read(path).epsilon(BUDGET.delta) == both
    for private in (one, two):
        private.close()


def test_batches_of_two_models_are_not_exchanged(path: Path) -> None:
    one, two = (Run().make() for _ in range(2))
    batch = next(iter(two))
    next(iter(one))
    with pytest.raises(BatchRefused, match="not drawn by this object's sampler"):
        one.step(batch)
    two.step(batch)
    for private in (one, two):
        private.close()


# A budget of the data set.


def test_a_run_that_would_exceed_the_data_sets_budget_is_refused_before_it_starts(
    path: Path,
) -> None:
    once = BUDGET.resolve(96).epsilon
    with Ledger.open(path, limit=(1.1 * once, BUDGET.delta)) as ledger:
        run = Run(settings={"ledger": ledger})
        run.train(run.make())
        another = Run(settings={"ledger": ledger})
        with pytest.raises(BudgetExceeded, match="above its budget"):
            another.make()
        small = Run(settings={"ledger": ledger, "budget": replace(BUDGET, steps=1)})
        small.train(small.make())
    assert charged(path) == STEPS + 1
    assert Ledger.read(path).epsilon(BUDGET.delta) <= 1.1 * once


def test_a_step_that_would_exceed_the_data_sets_budget_is_not_released(path: Path) -> None:
    """Two runs, each of which would have fitted by itself."""
    once = BUDGET.resolve(96).epsilon
    with Ledger.open(path, limit=(1.1 * once, BUDGET.delta)) as ledger:
        runs = [Run(settings={"ledger": ledger}) for _ in range(2)]
        one, two = (run.make() for run in runs)
        runs[0].train(one)
        runs[1].train(two, 1)
        while True:
            before = weights(runs[1].model)
            state = [value.clone() for value in momentum(runs[1].optimizer)]
            batch = next(iter(two))
            try:
                two.step(batch)
            except BudgetExceeded:
                break
        assert torch.equal(weights(runs[1].model), before)
        assert all(map(torch.equal, momentum(runs[1].optimizer), state))
        assert two.steps_done == two.charged == charged(path) - STEPS < STEPS
        two.close()
    assert Ledger.read(path).epsilon(BUDGET.delta) <= 1.1 * once


def momentum(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [state["momentum_buffer"] for state in optimizer.state.values() if state]


def test_a_ledger_that_cannot_be_written_stops_the_run(path: Path) -> None:
    ledger = Ledger.open(path)
    run = Run(settings={"ledger": ledger})
    private = run.train(run.make(), 2)
    ledger.close()
    before = weights(run.model)
    with pytest.raises(LedgerError, match="cannot be charged"):
        run.train(private)
    assert torch.equal(weights(run.model), before)
    assert private.charged == private.steps_done == charged(path) == 2


# Seeds on a ledger.


def test_a_seeded_run_repeated_on_its_ledger_is_one_run(path: Path) -> None:
    ends = []
    for _ in range(2):
        torch.manual_seed(1)
        with Ledger.open(path) as ledger:
            run = Run(settings={"ledger": ledger, "seed": 1, "deterministic": True})
            run.train(run.make())
            ends.append(weights(run.model))
    assert torch.equal(*ends)
    assert charged(path) == STEPS


@pytest.mark.parametrize(
    "change",
    [
        {"budget": replace(BUDGET, noise_multiplier=1.1)},
        {"budget": replace(BUDGET, steps=3)},
        {"method": plumbline.methods.dpsgd(clip=2.0)},
        {"deterministic": True},
    ],
    ids=["noise", "steps", "clip", "deterministic"],
)
def test_a_seed_serves_one_run_on_a_ledger(path: Path, change: dict[str, Any]) -> None:
    with Ledger.open(path) as ledger:
        run = Run(settings={"ledger": ledger, "seed": 1})
        run.train(run.make(), 2)
        with pytest.raises(NoiseReuse, match="Give every run on a ledger a seed of its own"):
            Run(settings={"ledger": ledger, "seed": 1, **change}).make()
        other = Run(settings={"ledger": ledger, "seed": 2, **change})
        other.train(other.make(), 2)
    assert charged(path) == 4


def test_runs_of_one_seed_and_other_settings_share_no_noise() -> None:
    """Their first sums are equal; the difference of two answers must not reveal the sum."""
    steps = []
    for noise in (1.0, 1.0, 2.0):
        torch.manual_seed(1)
        run = Run(settings={"seed": 1, "budget": replace(BUDGET, noise_multiplier=noise)})
        start = weights(run.model)
        run.train(run.make(), 1)
        steps.append(weights(run.model) - start)
    assert torch.equal(steps[0], steps[1])
    exact_if_shared = 2 * steps[0] - steps[2]  # g + z and g + 2 z
    torch.manual_seed(1)
    silent = Run(settings={"seed": 1, "method": plumbline.methods.clipped_only()})
    start = weights(silent.model)
    silent.train(silent.make(), 1)
    exact = weights(silent.model) - start
    assert not torch.allclose(exact_if_shared, exact, atol=1e-3)


# What may be stepped on.


def test_a_batch_is_stepped_on_once() -> None:
    private = Run().make()
    batch = next(iter(private))
    private.step(batch)
    with pytest.raises(BatchRefused, match="stepped on already"):
        private.step(batch)
    assert private.charged == 1
    private.close()


@pytest.mark.parametrize("thing", [None, torch.zeros(3, 6), (torch.zeros(3, 6), torch.zeros(3))])
def test_what_is_no_batch_of_the_sampler_is_refused(thing: Any) -> None:
    private = Run().make()
    with pytest.raises(BatchRefused, match="for batch in private"):
        private.step(thing)
    next(iter(private))
    with pytest.raises(BatchRefused):
        private.step(thing)
    assert private.charged == 0


def test_an_earlier_draw_of_a_step_is_refused() -> None:
    private = Run().make()
    early = next(iter(private))
    late = next(iter(private))
    assert torch.equal(early.indices, late.indices)
    with pytest.raises(BatchRefused):
        private.step(early)
    private.step(late)
    private.close()


def test_a_loop_can_be_left_and_entered_again() -> None:
    private = Run().make()
    for batch in private:
        if batch.step == 4:
            break
        private.step(batch)
    assert private.steps_done == 4
    for again in private:
        assert again.step > 4 or torch.equal(again.indices, batch.indices)
        private.step(again)
    assert private.steps_done == STEPS


@pytest.mark.parametrize("with_ledger", [False, True])
def test_no_step_is_made_beyond_the_budget(path: Path, with_ledger: bool) -> None:
    ledger = Ledger.open(path) if with_ledger else None
    run = Run(settings={"ledger": ledger})
    private = run.make()
    for batch in private:
        private.step(batch)
        last = batch
    before = weights(run.model)
    assert len(private) == 0
    with pytest.warns(RunFinished):
        assert list(private) == []
    with pytest.raises(BudgetSpent, match="12 steps are charged of the 12"):
        private.step(last)
    assert torch.equal(weights(run.model), before)
    assert private.charged == STEPS
    if ledger is not None:
        ledger.close()


def test_a_step_that_fails_after_it_was_charged_is_spent(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its noisy answer may have been seen: neither its batch nor its noise is used again."""
    with Ledger.open(path) as ledger:
        run = Run(settings={"ledger": ledger, "seed": 1})
        private = run.make()
        run.train(private, 2)
        with monkeypatch.context() as patch:
            patch.setattr(run.optimizer, "step", fail)
            batch = next(iter(private))
            with pytest.raises(ZeroDivisionError):
                private.step(batch)
        assert (private.steps_done, private.charged) == (3, 3)
        following = next(iter(private))
        assert following.step == 3
        assert following.indices.tolist() != batch.indices.tolist()
        private.step(following)
        run.train(private)
        assert (private.steps_done, private.charged) == (STEPS, STEPS)


def test_a_step_that_fails_before_it_was_charged_is_made_again() -> None:
    run = Run()
    private = run.make()
    batch = next(iter(private))
    forward, run.model[0].forward = run.model[0].forward, fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        private.step(batch)
    run.model[0].forward = forward  # type: ignore[method-assign]
    assert (private.steps_done, private.charged, private.epsilon()) == (0, 0, 0.0)
    run.train(private)
    assert private.charged == STEPS


def fail(*_: object) -> Any:
    raise ZeroDivisionError


# Epsilon along the way.


@pytest.mark.parametrize(
    ("relation", "accountant"),
    [("add_remove", "pld"), ("replace_one", "pld"), ("add_remove", "rdp")],
)
def test_epsilon_during_a_run_is_never_below_the_exact_one(relation: str, accountant: str) -> None:
    budget = replace(BUDGET, steps=40)
    run = Run(settings={"budget": budget, "relation": relation, "accountant": accountant})
    private = run.make()
    assert private.epsilon() == 0
    shown = [0.0]
    for batch in private:
        private.step(batch)
        if private.steps_done in (1, 2, 7, 19, 39, 40):
            shown.append(private.epsilon())
            assert shown[-1] >= shown[-2]
            assert shown[-1] >= private.epsilon(exact=True) > 0
    assert shown[-1] == private.epsilon(exact=True) == private.plan.epsilon


def test_epsilon_counts_what_the_ledger_has_and_not_less(path: Path) -> None:
    with Ledger.open(path) as ledger:
        run = Run(settings={"ledger": ledger})
        private: Private = run.train(run.make(), 2)
        shown = private.epsilon(exact=True)
        ledger.charge(private.plan.release.to_dict(), run=private.run, step=2, count=3)
        assert private.charged == 5
        assert private.epsilon(exact=True) == ledger.epsilon(BUDGET.delta) > shown
        assert private.epsilon() >= private.epsilon(exact=True)
