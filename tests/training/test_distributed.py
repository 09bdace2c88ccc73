"""Several processes, one run: the same batches and sums, one ledger, errors on all, no hang."""

from __future__ import annotations

import io
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Averaged, Clipping, Flat, GlobalAdapt, PerGroup
from plumbline.evaluation import Bam, DpSam, Evaluation, InnerMomentum, OuterMomentum
from plumbline.mechanism.ledger import BudgetExceeded, LedgerError
from plumbline.mechanism.random_source import SecureSource
from plumbline.mechanism.release import GaussianQuery, Query
from plumbline.methods import compose
from plumbline.record_errors import RecordError
from plumbline.training.answering import Answers
from plumbline.training.distributed import (
    RankFailed,
    RankLost,
    Ranks,
    RanksDisagree,
    _Word,
    shared_by,
)
from tests.training import small
from tests.training.ranks import in_ranks, values, warm
from tests.training.runs import STEPS, Run, charged, weights

GROUPS = torch.arange(small.RECORDS) % 2
USERS = (torch.arange(small.RECORDS) * 7) % 13

METHODS: dict[str, tuple[tuple[Evaluation, ...], Clipping]] = {
    "flat": ((), Flat(0.5)),
    "adapting": ((), GlobalAdapt(0.5, initial=2.0)),
    "groups": ((), PerGroup(0.5, (0, 1))),
    "buckets": ((), Averaged(0.5, 3)),
    "two questions": ((DpSam(0.05),), Flat(0.5)),
    "own weights": ((Bam(0.02),), Flat(0.5)),
    "momenta": ((InnerMomentum(2, 0.3), OuterMomentum(0.9)), Flat(0.5)),
}


def exact(name: str) -> Any:
    """A method without noise: its release can be compared."""
    rules, clipping = METHODS[name]
    return compose(evaluation=rules, clipping=clipping, name=name, noisy=False)


def trained(name: str, **settings: Any) -> tuple[Tensor, Tensor]:
    """What the last of three steps released, and the weights then."""
    private = small.private(
        method=exact(name),
        plan=small.budget(steps=3, **settings.pop("budget", {})),
        sensitive_features=GROUPS,
        **settings,
    )
    small.run(private)
    assert private.released is not None
    released = torch.cat([value.flatten() for value in private.released.values()])
    return released, small.weights(private.model)


CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in METHODS},
    "users": {"name": "flat", "user_ids": USERS, "budget": {"expected_batch_size": 4}},
    "chunks": {"name": "groups", "max_physical_batch": 3},
    "hardly anyone": {"name": "adapting", "budget": {"expected_batch_size": 1}},
    "public": {
        "name": "flat",
        "public": pl.PublicData(small.data(8, seed=3), batch_size=4),
    },
}


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """All cases on 1, 2 and 4 ranks: by number of ranks, by rank, by case."""
    folder = tmp_path_factory.mktemp("made")

    def all_cases(rank: int) -> dict[str, Any]:
        return {case: trained(**settings) for case, settings in CASES.items()}

    return {count: values(in_ranks(count, all_cases, folder)) for count in (1, 2, 4)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [2, 4])
def test_any_number_of_ranks_releases_the_same(case: str, count: int, made: Any) -> None:
    (released, weight), *_ = (rank[case] for rank in made[1])
    for rank in made[count]:
        assert torch.allclose(rank[case][0], released, rtol=1e-5, atol=1e-7)
        assert torch.allclose(rank[case][1], weight, rtol=1e-5, atol=1e-6)
        # And all ranks have the same bits: what adapts stays equal on all.
        assert torch.equal(rank[case][0], made[count][0][case][0])
        assert torch.equal(rank[case][1], made[count][0][case][1])
    assert float(released.abs().max()) > 0


MANY = 20_000


@pytest.mark.parametrize("count", [2, 4])
def test_the_released_sum_has_the_right_variance(count: int, tmp_path: Path) -> None:
    """The noise of all ranks together; and no two have any of it in common."""
    declared = (GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=2.0),)

    def asked(rank: int) -> tuple[Tensor, Tensor]:
        answers = Answers(SecureSource(), MANY, 0, Ranks.here())
        part = torch.full((MANY,), 1.0 + rank, dtype=torch.float64)
        query = Query(value=part, sensitivity=0.5, sigma=2.0)
        first = answers.answer(query, declared, 0, 0)["value"]
        return first, answers.answer(query, declared, 1, 0)["value"]

    found = values(in_ranks(count, asked, tmp_path))
    first, second = (one - sum(range(1, count + 1)) for one in found[0])
    for rank in found[1:]:
        assert torch.equal(rank[0], found[0][0])
        assert torch.equal(rank[1], found[0][1])
    # Standard deviation sensitivity x noise multiplier = 1; five deviations of each estimate.
    for noise in (first, second):
        assert abs(float(noise.mean())) < 5 / math.sqrt(MANY)
        assert abs(float(noise.std()) - 1) < 5 / math.sqrt(2 * MANY)
    assert abs(float(torch.dot(first, second)) / MANY) < 5 / math.sqrt(MANY)


def test_one_ledger_is_charged_once_a_step(tmp_path: Path) -> None:
    def train(rank: int) -> tuple[float, int, str, Tensor]:
        ledger = pl.Ledger.open(tmp_path / "ledger") if rank == 0 else None
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make())
        if ledger is not None:
            ledger.close()
        return private.epsilon(), private.charged, private.statement(), weights(run.model)

    found = values(in_ranks(2, train, tmp_path))
    assert charged(tmp_path / "ledger") == STEPS
    alone = Run()
    private = alone.train(alone.make())
    for epsilon, count, statement, weight in found:
        assert epsilon == private.epsilon()  # the accounting is that of one process
        assert count == STEPS
        assert "2 processes" in statement.replace("\n", " ")
        assert "1/2 of the variance" in statement.replace("\n", " ")
        assert torch.equal(weight, found[0][3])
    assert "processes" not in private.statement()


def test_ranks_start_from_the_weights_of_the_first(tmp_path: Path) -> None:
    def made(rank: int) -> Tensor:
        torch.manual_seed(rank)
        run = Run()
        run.make().close()
        return weights(run.model)

    first, second = values(in_ranks(2, made, tmp_path))
    assert torch.equal(first, second)


# Failing


def failures(
    work: Callable[[int], Any], folder: Path, count: int = 2, **options: Any
) -> list[BaseException | None]:
    return [one.error for one in in_ranks(count, work, folder, **options)]


class Broken(torch.utils.data.Dataset[Any]):
    """Records of which none can be read on one rank."""

    def __init__(self, rank: int) -> None:
        self._rank, self._data = rank, small.data()

    def __len__(self) -> int:
        return small.RECORDS

    def __getitem__(self, number: int) -> Any:
        if self._rank == 1:
            raise OSError("the disk is gone")
        return self._data[0][number], self._data[1][number]


@pytest.mark.parametrize("count", [2, 4])
def test_what_fails_on_one_rank_fails_on_all(count: int, tmp_path: Path) -> None:
    def train(rank: int) -> None:
        with pl.Ledger.open(tmp_path / "ledger") if rank == 0 else open(os.devnull) as ledger:
            given = ledger if isinstance(ledger, pl.Ledger) else None
            small.run(small.private(dataset=Broken(rank), ledger=given))

    found = failures(train, tmp_path, count)
    assert isinstance(found[1], RecordError)
    assert "fails with OSError" in str(found[1])
    for rank, error in enumerate(found):
        if rank != 1:
            assert isinstance(error, RankFailed)
            assert "Rank 1 failed" in str(error)
            assert "the disk is gone" in str(error)
    assert charged(tmp_path / "ledger") == 0  # it failed before the step was charged


@pytest.mark.parametrize("kind", [BudgetExceeded, LedgerError])
def test_a_step_that_cannot_be_charged_is_the_same_error_on_all(kind: Any, tmp_path: Path) -> None:
    def refuse(entries: Any) -> None:
        if sum(count for _, count in entries) == 3:  # not before the run: all four have room then
            raise kind("no more")

    def train(rank: int) -> None:
        ledger = pl.Ledger.open(tmp_path / "ledger", guard=refuse) if rank == 0 else None
        small.run(small.private(ledger=ledger))

    found = failures(train, tmp_path)
    assert [type(error) for error in found] == [kind, kind]
    assert "no more" in str(found[1])
    assert charged(tmp_path / "ledger") == 2


def test_a_full_disk_is_an_error_on_all(tmp_path: Path) -> None:
    def train(rank: int) -> None:
        ledger = pl.Ledger.open(tmp_path / "ledger") if rank == 0 else None
        private = small.private(ledger=ledger)
        os.fsync = _no_space  # type: ignore[assignment]
        small.run(private)

    found = failures(train, tmp_path)
    assert [type(error) for error in found] == [LedgerError, LedgerError]
    assert "Rank 0 failed" in str(found[1])


def _no_space(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_that_dies_ends_the_run_on_all(lost: int, tmp_path: Path) -> None:
    def train(rank: int) -> None:
        private = small.private(plan=small.budget(steps=5))
        for batch in private:
            if rank == lost and private.steps_done == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            private.step(batch)

    ended = in_ranks(3, train, tmp_path)
    assert ended[lost].killed
    for rank, one in enumerate(ended):
        if rank != lost:
            assert isinstance(one.error, RankLost), one.text
            assert "goes on from its last checkpoint" in str(one.error)


def test_a_rank_that_hangs_is_given_up(tmp_path: Path) -> None:
    def train(rank: int) -> None:
        processes = [0, 0]
        dist.all_gather_object(processes, os.getpid())
        private = small.private(plan=small.budget(steps=5))
        try:
            for batch in private:
                if rank == 1 and private.steps_done == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)
                private.step(batch)
        finally:
            if rank == 0:
                os.kill(processes[1], signal.SIGKILL)

    first, second = in_ranks(2, train, tmp_path, timeout=2.0)
    assert second.killed
    assert isinstance(first.error, RankLost), first.text


def test_ranks_that_do_different_things_are_told(tmp_path: Path) -> None:
    def train(rank: int) -> None:
        private = small.private()
        batch = next(iter(private))
        if rank == 1:
            private.save(tmp_path / "checkpoint")
        private.step(batch)

    for error in failures(train, tmp_path):
        assert isinstance(error, RanksDisagree)
        assert "rank 1 is at saving" in str(error)


def test_weights_that_came_apart_are_noticed(tmp_path: Path) -> None:
    def train(rank: int) -> None:
        private = small.private()
        with torch.no_grad():
            next(iter(private.parameters().values()))[0, 0] += 1e-6 * rank
        small.run(private)

    for error in failures(train, tmp_path):
        assert isinstance(error, RanksDisagree)
        assert "is not the same on all processes" in str(error)
        assert "change the weights in private.step only" in str(error)


def test_records_in_another_order_are_noticed(tmp_path: Path) -> None:
    """A record could be in the shares of both, and move the sum twice as far."""

    def train(rank: int) -> None:
        rows = small.data()
        small.run(small.private(dataset=tuple(one.flip(0) for one in rows) if rank else rows))

    for error in failures(train, tmp_path):
        assert isinstance(error, RanksDisagree)
        assert "records and their order is not the same on all processes" in str(error)
        assert "Give every process the whole data set, in the same order" in str(error)


def test_after_a_failure_nothing_more_is_done(tmp_path: Path) -> None:
    def train(rank: int) -> None:
        private = small.private(dataset=Broken(rank))
        with pytest.raises((RecordError, RankFailed)):
            small.run(private, steps=1)
        private.save(tmp_path / "checkpoint")

    for error in failures(train, tmp_path):
        assert isinstance(error, RankLost)
        assert "has failed" in str(error)


# Refusing before the first step


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (pl.methods.fairlens(), "means over the whole batch"),
        (pl.methods.dp_sat(as_released=True), "count of physical chunks"),
        (pl.methods.dp_gd_momentum(), "a momentum for every record"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_methods_that_cannot_be_shared_are_refused(
    method: Any, reason: str, tmp_path: Path
) -> None:
    def make(rank: int) -> None:
        small.private(method=method, sensitive_features=GROUPS)

    for error in failures(make, tmp_path):
        assert isinstance(error, ValueError | RankFailed)
        assert reason in str(error)


def test_other_settings_on_another_rank_are_refused(tmp_path: Path) -> None:
    def make(rank: int) -> None:
        small.private(plan=small.budget(noise_multiplier=1.0 + rank))

    found = failures(make, tmp_path)
    assert isinstance(found[1], RanksDisagree)
    assert "budget.noise_multiplier is 2.0 here and 1.0 on rank 0" in str(found[1])
    assert isinstance(found[0], RankFailed)


def test_a_ledger_on_another_rank_is_refused(tmp_path: Path) -> None:
    def make(rank: int) -> None:
        with pl.Ledger.open(tmp_path / f"ledger {rank}") as ledger:
            small.private(ledger=ledger)

    found = failures(make, tmp_path)
    assert "Rank 1 was given a ledger" in str(found[1])
    assert isinstance(found[0], RankFailed)


def test_a_wrapped_model_is_refused(tmp_path: Path) -> None:
    def make(rank: int) -> None:
        small.private(nn.parallel.DistributedDataParallel(small.network()))

    for error in failures(make, tmp_path):
        assert isinstance(error, ValueError | RankFailed)
        assert "model.module" in str(error)


def test_processes_without_a_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RuntimeError, match=r"started 3 processes.*init_process_group"):
        small.private()


# Going on


REPEATABLE = {"seed": 3, "deterministic": True}


@pytest.mark.parametrize(
    ("before", "after", "settings"),
    [
        (1, 2, {}),
        (2, 1, REPEATABLE),
        pytest.param(4, 2, {}, marks=pytest.mark.slow),
        pytest.param(4, 1, REPEATABLE, marks=pytest.mark.slow),
        pytest.param(1, 3, REPEATABLE, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    before: int, after: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Five steps, a checkpoint after the third: two are lost and stay charged."""
    ledger_path, checkpoint = tmp_path / "ledger", tmp_path / "checkpoint"

    def begin(rank: int) -> None:
        ledger = pl.Ledger.open(ledger_path) if rank == 0 else None
        run = Run("dropout", {**settings, "ledger": ledger})
        private = run.make()
        run.train(private, 3)
        private.save(checkpoint)
        run.train(private, 2)
        if ledger is not None:
            ledger.close()

    def go_on(rank: int) -> tuple[int, int, Tensor, str]:
        ledger = pl.Ledger.open(ledger_path) if rank == 0 else None
        run = Run("dropout", {**settings, "ledger": ledger})
        private = run.resume(checkpoint)
        run.train(private)
        if ledger is not None:
            ledger.close()
        return private.made, private.charged, weights(run.model), private.statement()

    values(in_ranks(before, begin, tmp_path))
    assert charged(ledger_path) == 5
    found = values(in_ranks(after, go_on, tmp_path))
    assert charged(ledger_path) == STEPS
    for done, spent, weight, statement in found:
        assert (done, spent) == (STEPS - 2, STEPS)
        assert torch.equal(weight, found[0][2])
        both = f"{min(before, after)} or {max(before, after)} processes"
        assert both in statement.replace("\n", " ")


def test_a_deterministic_run_is_repeated_bit_for_bit(tmp_path: Path) -> None:
    """Killed after the fifth step and resumed from the third, with dropout, by as many ranks."""
    settings = {"seed": 3, "deterministic": True}

    def life(rank: int, name: str, kill: bool) -> Tensor:
        torch.manual_seed(rank)  # each rank draws its own dropout masks, and keeps to them
        folder = tmp_path / name
        ledger = pl.Ledger.open(folder / "ledger") if rank == 0 else None
        run = Run("dropout", {**settings, "ledger": ledger})
        there = (folder / "checkpoint").exists()
        dist.barrier()
        private = run.resume(folder / "checkpoint") if there else run.make()
        for batch in private:
            if kill and private.steps_done == 5 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            private.step(batch)
            if private.steps_done == 3:
                private.save(folder / "checkpoint")
        return weights(run.model)

    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = values(in_ranks(2, lambda rank: life(rank, "whole", False), tmp_path))
    killed = in_ranks(2, lambda rank: life(rank, "broken", True), tmp_path)
    assert killed[1].killed
    assert isinstance(killed[0].error, RankLost)
    again = values(in_ranks(2, lambda rank: life(rank, "broken", False), tmp_path))
    for weight in again:
        assert torch.equal(weight, whole[0])
    assert charged(tmp_path / "broken" / "ledger") == STEPS


def test_all_ranks_stop_after_the_same_step(tmp_path: Path) -> None:
    """Ctrl-C reaches one rank only, at some moment."""

    def train(rank: int) -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        private = small.private(plan=small.budget(steps=20))

        def interrupt(private: pl.Private, info: Any) -> None:
            if rank == 1 and info.step == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return private.fit([interrupt], progress=False).step

    first, second = values(in_ranks(2, train, tmp_path))
    assert first == second
    assert first < 20


def test_one_rank_shows_progress(tmp_path: Path) -> None:
    """With the loss, though most batches leave some rank, or all, without a record."""

    def train(rank: int) -> str:
        shown = Console(file=io.StringIO(), width=200)
        private = small.private(plan=small.budget(steps=20, expected_batch_size=1))
        private.fit(show=("epsilon", "loss"), progress=shown)
        return shown.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    first, second = values(in_ranks(2, train, tmp_path))
    assert "step 20 of 20" in first
    assert "not covered by epsilon: loss" in first
    assert second == ""


# Words


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ((1,), []),
        ((4,), ["by 4 processes", "3/4 of the variance", "sampling does not help against it"]),
        ((2, 4), ["by 2 or 4 processes", "1/2 of the variance"]),
        ((1, 4), ["by 1 or 4 processes", "it knew all of the noise"]),
    ],
)
def test_the_statement_says_who_knows_the_noise(
    processes: tuple[int, ...], words: list[str]
) -> None:
    text = shared_by(processes, seeded=False)
    assert bool(text) == bool(words)
    for word in words:
        assert word in text
    seeded = shared_by(processes, seeded=True)
    assert ("have the seed" in seeded) == bool(words)
    assert "knows" not in seeded


@pytest.mark.parametrize("text", ["short", "long " * 400, "é" * 1200, '"' * 1200, "日本" * 600])
def test_an_error_of_any_length_is_passed_on(text: str) -> None:
    word = _Word("an error", error=text[:1200], kinds=["BudgetExceeded", "LedgerError"])
    found = _Word.unpacked(word.packed())
    assert found.at == "an error"
    failure = found.failure(3)
    assert isinstance(failure, BudgetExceeded)
    assert str(failure).startswith("Rank 3 failed")
    assert len(found.error) >= min(len(text), 250)


def test_alone_nobody_is_met() -> None:
    ranks = Ranks.here()
    assert (ranks.rank, ranks.count, ranks.first) == (0, 1, True)
    assert ranks.meet("anywhere", "word") == ["word"]
    ranks.wish("stop")
    assert ranks.granted("stop")
    assert not ranks.granted("stop")
    value = torch.ones(3)
    assert ranks.sum(value) is value
    assert ranks.from_first("anywhere", lambda: 5) == 5
