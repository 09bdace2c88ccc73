"""Ranks killed at any point, and the run resumed by any number of them: nothing is lost.

A life of the run is one to three forked ranks that train, with a ledger and a checkpoint every
third step, and write down each step once it is released. One rank, or all of them, are killed: at
one of their calls to the disk or to each other, before or after it, or at any moment. The others
must end, with an error; and the ledger has every step that was written down. A kill costs at most
one step, and what was made before it is found again, to the bit, by however many ranks.
"""

import hashlib
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from plumbline import Ledger
from plumbline.training.distributed import RankFailed, RankLost
from tests.training.ranks import Ended, in_ranks, warm
from tests.training.runs import STEPS, Run, charged, weights

SETTINGS: dict[str, dict[str, Any]] = {
    "repeatable": {"seed": 3, "deterministic": True},
    "secure": {},
}
CALLS = {"disk": (os, ("pwrite", "pwritev", "write", "fsync", "replace")), "other ranks": (
    dist, ("all_gather", "all_reduce", "broadcast", "broadcast_object_list")
)}  # fmt: skip


@dataclass
class Plan:
    """Who is killed in a life: at which of its calls, or after how many seconds."""

    ranks: int
    victims: tuple[int, ...] = ()
    at: int = 0
    before: bool = True
    after: float = 0.0


@dataclass
class Record:
    """What a folder's lives have come to."""

    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    finished: int = 0


def life(folder: Path, number: int, settings: dict[str, Any], plan: Plan, rank: int) -> int:
    """Trains to the end, from the checkpoint if there is one; returns how many steps are done."""
    notes = os.open(folder / "released", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    write = os.write  # before anyone watches it
    if rank in plan.victims and plan.after:
        signal.setitimer(signal.ITIMER_REAL, plan.after)  # whose signal kills
    elif rank in plan.victims:
        _kill_at(folder, plan)
    checkpoint = folder / "checkpoint"
    torch.manual_seed(rank)
    ledger = Ledger.open(folder / "ledger", reserve=50) if rank == 0 else None
    run = Run("dropout", {**settings, "ledger": ledger})
    private = run.make(checkpoint=checkpoint)
    diary = os.open(folder / "diary", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note() -> None:
        digest = hashlib.sha256(weights(run.model).numpy().tobytes()).hexdigest()
        if (
            rank == 0
        ):  # another may have moved its weights when rank 0 was killed, and the step lost
            write(diary, f"{private.made} {private.lost} {digest}\n".encode())

    note()
    for batch in private:
        private.step(batch)
        note()
        attempt = private.attempt if settings else number
        write(notes, f"{attempt} {batch.step}\n".encode())
        if private.steps_done % 3 == 0:
            private.save()
    private.save()
    if ledger is not None:
        ledger.close()
    return private.charged


def _kill_at(folder: Path, plan: Plan) -> None:
    """From now on this process kills itself at a given call of those watched."""
    count = 0

    def watch(kind: str, module: Any, name: str) -> None:
        call = getattr(module, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            own = count
            if own == plan.at:
                (folder / "killed").write_text(f"at a call to the {kind}")
            if own == plan.at and plan.before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **named)
            if own == plan.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(module, name, watched)

    for kind, (module, names) in CALLS.items():
        for name in names:
            watch(kind, module, name)


def check(ended: list[Ended], plan: Plan, folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the life reached its end; asserts that no rank hung and nothing is under-stated."""
    released = set((folder / "released").read_text().splitlines())
    spent = charged(folder / "ledger") if (folder / "ledger").exists() else 0
    assert len(released) <= spent <= STEPS
    dead = any(one.killed for one in ended)
    for one in ended:
        assert one.killed or not dead or one.error is not None or one.value is not None
        if one.error is not None:
            assert dead, one.text
            assert isinstance(one.error, RankLost | RankFailed), one.text
    return all(one.value == STEPS for one in ended)


def lives(folder: Path, name: str, chance: random.Random, record: Record) -> None:
    """Life after life, each with a kill, and then one to the end."""
    settings = SETTINGS[name]
    (folder / "released").touch()
    kills = 0
    for number in range(20):
        ranks = chance.choice((1, 2, 2, 3))
        victims: tuple[int, ...] = (chance.randrange(ranks),)
        if chance.random() < 0.25:
            victims = tuple(range(ranks))
        plan = Plan(ranks, victims, chance.randint(1, 60 if ranks > 1 else 40))
        plan.before = chance.random() < 0.5
        if chance.random() < 0.3:
            plan.after = 0.02 + 0.4 * chance.random()
        if number >= 3:
            plan = Plan(ranks)
        (folder / "killed").unlink(missing_ok=True)
        ended = in_ranks(ranks, partial(life, folder, number, settings, plan), folder)
        record.lives += 1
        if any(one.killed for one in ended):
            who = "one of several ranks" if len(victims) < ranks else "all ranks"
            who = "the only rank" if ranks == 1 else who
            where = "at some moment" if plan.after else (folder / "killed").read_text()
            record.kills[f"{who} {where}"] += 1
            kills += 1
        if check(ended, plan, folder, settings):
            record.finished += 1
            if name == "secure":  # a repeatable run is made again, by other ranks otherwise
                _check_diary(folder, kills)
            return
    raise AssertionError("the run does not come to its end")


def _check_diary(folder: Path, most_lost: int) -> None:
    """Whenever so many updates were made, the weights were these, in all lives."""
    seen: dict[str, str] = {}
    for line in (folder / "diary").read_text().splitlines():
        made, lost, digest = line.split()
        assert seen.setdefault(made, digest) == digest
    assert int(lost) <= most_lost
    assert int(made) == STEPS - int(lost)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm()


@pytest.mark.parametrize("name", list(SETTINGS))
def test_killed_ranks_lose_nothing(name: str, tmp_path: Path) -> None:
    record = Record()
    lives(tmp_path, name, random.Random(f"{name} few"), record)
    assert record.finished == 1
    assert sum(record.kills.values()) >= 1


@pytest.mark.slow
def test_a_hundred_kills(tmp_path: Path) -> None:
    record, chance = Record(), random.Random("a hundred kills")
    while sum(record.kills.values()) < 100:
        run = record.finished
        folder = tmp_path / str(run)
        folder.mkdir()
        lives(folder, ("repeatable", "secure")[run % 2], chance, record)
    print(f"\n{record.lives} lives, {record.finished} runs finished, kills: {dict(record.kills)}")
    assert record.finished >= 25
