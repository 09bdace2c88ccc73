"""A ledger that several processes write to at once: no line is lost, whoever is killed."""

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline.mechanism import ledger_file
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.ledger import (
    BudgetExceeded,
    Ledger,
    LedgerDamaged,
    LedgerError,
    LedgerLocked,
)
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, Selection, StepRelease
from plumbline.mechanism.shared_ledger import SharedLedger
from tests.mechanism.forked import in_child, reports_until_killed

SEEDED = f"{'a' * 16}-{'b' * 16}"


def step(noise: float = 2.0, rate: float = 0.1) -> StepRelease:
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=noise)
    return StepRelease(sampling=PoissonSampling(rate=rate), queries=(query,))


def release(noise: float = 2.0) -> dict[str, Any]:
    return step(noise).to_dict()


def charged(path: Path, run: str) -> int:
    return sum(count for _, count in SharedLedger.read(path).entries(run))


def counts(path: Path, run: str) -> Counter[float]:
    """How many steps were charged to a run, by their noise."""
    entries = SharedLedger.read(path).entries(run)
    return Counter({one["queries"][0]["noise_multiplier"]: count for one, count in entries})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


# Many writers.


def test_processes_that_write_at_once_lose_no_line(path: Path) -> None:
    children = []
    for name in "abcd":
        child = os.fork()
        if child == 0:
            with SharedLedger.open(path) as ledger:
                for place in range(25):
                    ledger.charge(release(), run=name, step=place)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert {name: charged(path, name) for name in "abcd"} == dict.fromkeys("abcd", 25)
    SharedLedger.open(path).close()  # whole: no line was torn, and the chain is intact
    assert b"torn" not in path.read_bytes()


@pytest.mark.parametrize("seed", range(5))
def test_charges_interleave_in_any_order(path: Path, seed: int) -> None:
    """Two objects of one file, with steps charged ahead, as a plain count has it."""
    chance = random.Random(seed)
    objects = {name: SharedLedger.open(path, reserve=4) for name in "ab"}
    truth: dict[str, Counter[float]] = {name: Counter() for name in "ab"}
    for place in range(60):
        name, noise = chance.choice("ab"), chance.choice([1.0, 1.0, 1.0, 2.0])
        if chance.random() < 0.1:
            objects[name].close()
            objects[name] = SharedLedger.open(path, reserve=4)
        objects[name].charge(release(noise), run=name, step=place)
        truth[name][noise] += 1
        assert all(counts(path, run) >= truth[run] for run in "ab")
    for one in objects.values():
        one.close()
    assert {run: counts(path, run) for run in "ab"} == truth


def test_a_copy_of_a_run_is_charged_by_itself(path: Path) -> None:
    """Neither uses nor gives back what the other has charged ahead."""
    one, other = (SharedLedger.open(path, reserve=10) for _ in range(2))
    one.charge(release(), run="r", step=0)
    other.charge(release(), run="r", step=0)
    assert charged(path, "r") == 20
    one.close()  # whose charge is not the run's last one
    assert charged(path, "r") == 20
    other.charge(release(), run="r", step=1)
    other.close()
    assert charged(path, "r") == 10 + 2


def test_a_torn_line_is_charged_to_whoever_wrote_it(path: Path) -> None:
    """The next writer finds and repairs it, in the middle of its own session."""
    mine = SharedLedger.open(path, reserve=5)
    mine.charge(release(1.0), run="mine", step=0, count=5)

    def work(_: Callable[[], None]) -> None:
        theirs = SharedLedger.open(path, reserve=3)
        theirs.charge(release(2.0), run="theirs", step=0, count=3)
        real = os.pwrite

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            real(fd, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.pwrite = pwrite  # only in the child
        theirs.charge(release(2.0), run="theirs", step=3, count=3)

    reports_until_killed(work, None)
    mine.charge(release(1.0), run="mine", step=5, count=5)
    mine.close()
    assert (charged(path, "mine"), charged(path, "theirs")) == (10, 6)


def test_after_others_have_written_a_release_is_declared_anew(path: Path) -> None:
    one, other = (SharedLedger.open(path) for _ in range(2))
    for place, ledger in enumerate([one, other, one, one]):
        ledger.charge(release(), run="r" if ledger is one else "s", step=place)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["ledger", *["release", "charge"] * 3, "charge"]


def test_what_another_has_written_is_damaged(path: Path) -> None:
    ledger = SharedLedger.open(path)
    ledger.charge(release(), run="r", step=0)
    with path.open("ab") as stream:
        stream.write(b"nonsense\nmore\n")
    with pytest.raises(LedgerDamaged, match="line 4"):
        ledger.charge(release(), run="r", step=1)


@pytest.mark.parametrize("how", ["cut", "moved", "replaced"])
def test_a_file_that_is_taken_away_stops_it(path: Path, how: str) -> None:
    ledger = SharedLedger.open(path)
    ledger.charge(release(), run="r", step=0)
    if how == "cut":
        os.truncate(path, 100)
    else:
        path.rename(path.with_name("elsewhere"))
    if how == "replaced":
        shutil.copy(path.with_name("elsewhere"), path)
    with pytest.raises(LedgerError, match=r"cut short|moved away|put in its place"):
        ledger.charge(release(), run="r", step=1)


def test_it_waits_for_others_but_not_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedLedger.open(path)
    monkeypatch.setattr(ledger_file, "_PATIENCE", 0.0)
    with Ledger.open(path), pytest.raises(LedgerLocked, match="which is this one"):
        shared.charge(release(), run="r", step=0)


def test_a_forked_child_does_not_write(path: Path) -> None:
    ledger = SharedLedger.open(path)

    def work() -> str:
        with pytest.raises(LedgerError) as caught:
            ledger.charge(release(), run="r", step=0)
        return str(caught.value)

    assert "is a fork of it" in in_child(work)
    ledger.charge(release(), run="r", step=0)
    assert charged(path, "r") == 1


# What its runs are, and what was released.


def test_what_a_run_is_stays_as_it_was_first_said(path: Path) -> None:
    with SharedLedger.open(path) as ledger:
        ledger.charge(release(), run="r", step=0)
        ledger.describe("r", {"title": "a run"})
        ledger.describe("r", {"title": "another"})
    read = SharedLedger.read(path)
    assert read.about("r") == {"title": "a run"}
    assert read.about("s") == {}
    assert Ledger.read(path).runs() == {"r"}  # an ordinary reader takes it too


def test_released_runs_and_what_was_asked_before_them_count_once(path: Path) -> None:
    with SharedLedger.open(path) as ledger:
        ledger.charge(release(9.0), run="schema-1", step=0)
        for run, count in (("a", 10), ("b", 20), ("c", 40)):
            ledger.charge(release(), run=run, step=0, count=count)
            ledger.describe(run, {"before": ["schema-1"]})
        ledger.release("b")
        ledger.release("a")
        ledger.release("b")
        with pytest.raises(LedgerError, match="no charge of a run 'd'"):
            ledger.release("d")
    read = SharedLedger.read(path)
    assert read.released == ("b", "a")
    assert sorted(count for _, count in read.entries_of(read.released)) == [1, 30]


def test_the_limit_is_on_what_is_released_and_set_once(path: Path) -> None:
    alone = epsilon([(step(), 10)], delta=1e-5)
    both = epsilon([(step(), 20)], delta=1e-5)
    with SharedLedger.open(path) as ledger:
        ledger.limit_released(((alone + both) / 2, 1e-5))
        for run in "ab":  # what is only run is not limited
            ledger.charge(release(), run=run, step=0, count=10)
        ledger.release("a")
    with SharedLedger.open(path) as ledger:
        with pytest.raises(BudgetExceeded, match="with the 1 released already, epsilon"):
            ledger.release("b")
        with pytest.raises(LedgerError, match="A limit is set once"):
            ledger.limit_released((50.0, 1e-5))
        with pytest.raises(BudgetExceeded):
            ledger.require_releasable(planned=[(release(), 10)])
        ledger.require_releasable(planned=[(release(50.0), 1)])
        assert ledger.released == ("a",)
    assert SharedLedger.read(path).limit is None  # no limit on what is charged


@pytest.mark.parametrize(("run", "noise"), [("r", 0.0), (SEEDED, 2.0)])
def test_what_has_no_bound_is_not_released_within_a_limit(
    path: Path, run: str, noise: float
) -> None:
    with SharedLedger.open(path) as ledger:
        ledger.charge(release(noise), run=run, step=0)
        ledger.limit_released((100.0, 1e-5))
        with pytest.raises(BudgetExceeded, match="more than can be bounded"):
            ledger.release(run)


def test_a_selection_is_charged_as_a_whole(path: Path) -> None:
    chosen = Selection(mean=5.0, releases=((step(), 20), (step(30.0, 1.0), 1)))
    with SharedLedger.open(path) as ledger:
        ledger.charge(chosen.to_dict(), run="selection-1", step=0)
        ledger.charge(release(), run="r", step=0, count=3)
    expected = epsilon([(chosen, 1), (step(), 3)], delta=1e-5)
    assert SharedLedger.read(path).epsilon(1e-5) == pytest.approx(expected)
    assert expected > epsilon([(step(), 23)], delta=1e-5, accountant="rdp")


def test_what_was_charged_elsewhere_is_entered_once(path: Path) -> None:
    with SharedLedger.open(path, reserve=50) as ledger:
        ledger.enter("r", [(release(), 7), (release(3.0), 1)])
        ledger.enter("r", [(release(), 9)])
        ledger.enter("r", [(release(), 5)])
        assert ledger.entries("r") == [(release(), 9), (release(3.0), 1)]
