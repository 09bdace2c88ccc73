"""A run's own ledger within shared ones: these have every charge first, and never less."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline.mechanism.ledger import BudgetExceeded, Ledger, LedgerError
from plumbline.mechanism.ledger_file import LedgerFile
from plumbline.mechanism.release import FullBatch, GaussianQuery, StepRelease
from plumbline.mechanism.run_ledger import RunLedger
from tests.mechanism.forked import reports_until_killed


def release(noise: float = 2.0) -> dict[str, Any]:
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=noise)
    return StepRelease(sampling=FullBatch(), queries=(query,)).to_dict()


class Paths:
    def __init__(self, folder: Path) -> None:
        (folder / "run").mkdir()
        self.own, self.shared = folder / "run" / "ledger", folder / "shared"

    def open(self, reserve: int = 1) -> RunLedger:
        return RunLedger.within(self.own, [self.shared], reserve=reserve)

    def charged(self, run: str = "r") -> tuple[int, int]:
        """In the own one, and in the shared one."""
        books = Ledger.read(self.own), Ledger.read(self.shared)
        own, shared = (sum(count for _, count in book.entries(run)) for book in books)
        return own, shared


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def test_both_have_every_charge(paths: Paths) -> None:
    with paths.open(reserve=5) as ledger:
        for step in range(7):
            ledger.charge(release(), run="r", step=step, most=8)
        assert ledger.charged("r") == 7
        assert paths.charged() == (8, 8)  # no more ahead than the run may charge
    assert paths.charged() == (7, 7)
    with paths.open(reserve=5) as ledger:
        ledger.charge(release(), run="r", step=7, most=8)
        with pytest.raises(BudgetExceeded):
            ledger.charge(release(), run="r", step=8, most=8)
    assert paths.charged() == (8, 8)


def test_the_shared_one_is_charged_first(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, real = paths.open(), LedgerFile.append

    def append(file: LedgerFile, data: bytes, *, overwrite: int = 0) -> None:
        if file.path == paths.own:
            raise LedgerError("the run's own disk is full")
        real(file, data, overwrite=overwrite)

    monkeypatch.setattr(LedgerFile, "append", append)
    with pytest.raises(LedgerError):
        ledger.charge(release(), run="r", step=0)
    assert paths.charged() == (0, 1)


def test_without_the_shared_one_nothing_is_charged(paths: Paths) -> None:
    ledger = paths.open()
    paths.shared.unlink()
    with pytest.raises(LedgerError, match="moved away or deleted"):
        ledger.charge(release(), run="r", step=0)
    assert Ledger.read(paths.own).runs() == set()


def test_a_shared_one_that_was_lost_is_brought_up(paths: Paths) -> None:
    with paths.open() as ledger:
        ledger.charge(release(9.0), run="schema-1", step=0, most=1)
        ledger.charge(release(), run="r", step=0, count=6)
    paths.shared.unlink()
    with paths.open(reserve=50) as ledger:
        ledger.charge(release(), run="r", step=6, most=7)
    assert paths.charged() == (7, 7)
    assert paths.charged("schema-1") == (1, 1)


def test_what_was_released_for_several_runs_is_charged_once(paths: Paths) -> None:
    with paths.open() as ledger:
        ledger.charge(release(9.0), run="schema-1", step=0, most=1)
    paths.own.unlink()  # that of the next run
    with paths.open(reserve=50) as ledger:
        ledger.repeat(release(9.0), run="schema-1")
        ledger.repeat(release(9.0), run="schema-1")
    assert paths.charged("schema-1") == (1, 1)


def test_a_copied_folder_is_charged_in_addition(paths: Paths) -> None:
    with paths.open() as ledger:
        ledger.charge(release(), run="r", step=0, count=5)
    copy = Paths.__new__(Paths)
    copy.own, copy.shared = paths.own.with_name("copy"), paths.shared
    shutil.copy(paths.own, copy.own)
    for one in (paths, copy):
        with one.open() as ledger:
            ledger.charge(release(), run="r", step=5, count=3, most=8)
    assert paths.charged() == (8, 5 + 3 + 3)


def test_steps_made_again_from_a_seed_are_not_charged_again(paths: Paths) -> None:
    with paths.open(reserve=10) as ledger:
        for _ in range(2):
            ledger.charge(release(), run="r", step=0, noise_position=(0, "x"), most=3)
    assert paths.charged() == (1, 1)


@pytest.mark.parametrize(("journal", "left"), [("mine", (3, 3)), ("a copy", (10, 10))])
def test_each_gives_back_what_the_journal_shows(
    paths: Paths, journal: str, left: tuple[int, int]
) -> None:
    def work(_: Callable[[], None]) -> None:
        ledger = paths.open(reserve=10)
        for step in range(3):
            ledger.charge(release(), run="r", step=step, journal="mine")
        os.kill(os.getpid(), signal.SIGKILL)

    reports_until_killed(work, None)
    assert paths.charged() == (10, 10)
    with paths.open(reserve=10) as ledger:
        ledger.give_back("r", 3, journal)
    assert paths.charged() == left


def test_a_folder_that_was_restored_is_noticed(paths: Paths) -> None:
    with paths.open() as ledger:
        ledger.charge(release(), run="r", step=0)
        ledger.note_checkpoint("r", step=1, token="first")
        position = ledger.position
    kept = paths.own.read_bytes()
    with paths.open() as ledger:
        assert ledger.later_checkpoint("r", token="first", position=position) is None
        ledger.note_checkpoint("r", step=2, token="second")
    paths.own.write_bytes(kept)  # with the folder, from a backup
    with paths.open() as ledger:
        assert ledger.later_checkpoint("r", token="first", position=position) == 2


def test_the_budget_of_a_shared_one_is_kept(paths: Paths) -> None:
    Ledger.open(paths.shared, limit=(1.0, 1e-5)).close()
    with paths.open() as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.require_room(release(), 100)
        with pytest.raises(BudgetExceeded):
            ledger.charge(release(), run="r", step=0, count=100)
    assert paths.charged() == (0, 0)


@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_call_to_the_disk_neither_says_too_little(paths: Paths, seed: int) -> None:
    chance = random.Random(seed)
    calls, part = chance.randrange(3, 12), chance.random()

    def work(report: Callable[[], None]) -> None:
        real, done = os.pwrite, 0

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            nonlocal done
            done += 1
            if done < calls:
                return real(fd, data, offset)
            real(fd, data[: int(part * len(data))], offset)
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        os.pwrite = pwrite  # only in the child
        ledger = paths.open(reserve=3)
        for step in range(40):
            ledger.charge(release(), run="r", step=step)
            report()

    made = reports_until_killed(work, None)
    with paths.open() as ledger:  # repairs both
        assert made <= ledger.charged("r") <= made + 2 * 3
    own, shared = paths.charged()
    assert made <= own <= shared <= made + 2 * 3
