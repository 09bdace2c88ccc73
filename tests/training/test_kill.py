"""A process killed at any point, and resumed: the same weights, and never less charged.

A life of the run is a forked child that trains, with a ledger and a checkpoint now and then, and
reports each step through a pipe once it is released. It is killed by the parent after some report,
wherever it is by then, or kills itself at one of its calls to the disk, before or after it. It
leaves a diary of the weights: after each step, and as it finds them when it goes on.
"""

import hashlib
import json
import os
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline import Ledger
from plumbline.gradients.kernels import KERNELS
from plumbline.noise import banded
from plumbline.training import journal
from tests.mechanism.forked import in_child
from tests.training.runs import BUDGET, RECORDS, STEPS, Run, charged, weights

SETTINGS: dict[str, dict[str, Any]] = {
    "repeatable": {"seed": 3, "deterministic": True},
    "seeded": {"seed": 3},
    "secure": {},
    "charged ahead": {"reserve": 50},
    "correlated": {"reserve": 50, "noise": banded(bands=3)},
}
KINDS = ("dropout", "adam and schedulers")
FAILED = 255
plain_write = os.write  # which no kill watches


def life(folder: Path, kind: str, settings: dict[str, Any], report: Callable[[int], object]) -> int:
    """Trains to the end, from the checkpoint if there is one; counts its calls to the disk."""
    calls = DiskCalls.watched
    checkpoint = folder / "checkpoint"
    torch.manual_seed(1)
    KERNELS.pin()  # as a repeatable run does: seeded ones are compared to the bit too
    diary = os.open(folder / "diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ledger = Ledger.open(folder / "ledger", reserve=settings.get("reserve", 1))
    own = {name: value for name, value in settings.items() if name != "reserve"}
    with ledger:
        run = Run(kind, {**own, "ledger": ledger})

        def note(steps: list[int], **more: Any) -> None:
            plain_write(diary, json.dumps({"steps": steps, **more}).encode() + b"\n")

        def note_weights(steps: list[int]) -> None:
            digest = hashlib.sha256(weights(run.model).numpy().tobytes()).hexdigest()
            note(steps, made=private.made, lost=private.lost, weights=digest)

        note([step for step, _ in journal.read(checkpoint, private=False).releases])
        private = run.make(checkpoint=checkpoint)
        note_weights([])
        for batch in private:
            private.step(batch)
            report(batch.step)
            note_weights([batch.step])
            if private.steps_done % 5 == 0:
                private.save()
        private.save()
        private.close()
    torch.save(weights(run.model), folder / "end")
    return calls.count if calls else 0


def diary_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "diary").read_text().splitlines()]


class DiskCalls:
    """Counts this process's calls to the disk, and kills it at a given one."""

    watched: "DiskCalls | None" = None

    def __init__(self, kill_at: int | None = None, before: bool = True) -> None:
        self.count = 0
        DiskCalls.watched = self
        for name in ("pwrite", "pwritev", "write", "fsync", "replace"):
            self._watch(name, kill_at, before)

    def _watch(self, name: str, kill_at: int | None, before: bool) -> None:
        call = getattr(os, name)

        def watched(*arguments: Any) -> Any:
            self.count += 1
            if self.count == kill_at and before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments)
            if self.count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, watched)


@dataclass
class End:
    """What an uninterrupted run came to."""

    weights: torch.Tensor
    calls: int


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    """Uninterrupted runs, by kind."""
    # Here, so that no child has to do it: epsilon is cached, and torch imports half of itself when
    # the first optimizer is built. No Private: its threads would not survive the fork.
    BUDGET.resolve(RECORDS)
    found = {}
    for kind in KINDS:
        Run(kind)
        folder = tmp_path_factory.mktemp("whole")

        def whole(kind: str = kind, folder: Path = folder) -> int:
            DiskCalls()
            return life(folder, kind, SETTINGS["repeatable"], lambda step: None)

        calls = in_child(whole)
        found[kind] = End(torch.load(folder / "end", weights_only=True), calls)
    return found


def steps_until_killed(
    work: Callable[[Callable[[int], object]], object], after: int | None
) -> tuple[list[int], bool]:
    """The steps that a child reported, and whether it was killed: by us, or by itself."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        write = os.write  # before anyone watches it
        try:
            work(lambda step: write(write_end, bytes([step])))
        except BaseException:
            write(write_end, bytes([FAILED]) + traceback.format_exc().encode())
        os._exit(0)
    os.close(write_end)
    received = b""
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while len(received) != after and (byte := pipe.read(1)):
            received += byte
        if after is not None:
            os.kill(child, signal.SIGKILL)
        received += pipe.read()
    _, status = os.waitpid(child, 0)
    steps, failed, text = received.partition(bytes([FAILED]))
    assert not failed, text.decode()
    return list(steps), os.WIFSIGNALED(status)


def lives(
    folder: Path, kind: str, settings: dict[str, Any], calls: int, chance: random.Random
) -> Iterator[tuple[list[int], bool]]:
    """One life after another, each but the last with a kill somewhere, as `chance` will."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        if chance.random() < 0.5:
            yield steps_until_killed(
                lambda report: life(folder, kind, settings, report), chance.randrange(STEPS)
            )
        else:
            at, before = chance.randint(1, calls), chance.random() < 0.5

            def until(report: Callable[[int], object], at: int = at, before: bool = before) -> None:
                DiskCalls(at, before)
                life(folder, kind, settings, report)

            yield steps_until_killed(until, None)
    yield steps_until_killed(lambda report: life(folder, kind, settings, report), None)


def check(point: int, name: str, folder: Path, ends: dict[str, End]) -> tuple[int, int]:
    """Lives of a run; how often it was killed, and how many steps it lost."""
    kind = KINDS[point % len(KINDS)]
    released: list[int] = []
    kills = 0
    chance = random.Random(f"{name} {point}")
    for steps, killed in lives(folder, kind, SETTINGS[name], ends[kind].calls, chance):
        released += steps
        kills += killed
        spent = charged(folder / "ledger") if (folder / "ledger").exists() else 0
        # A repeatable step that is made again is the same release.
        assert spent >= len(set(released) if name == "repeatable" else released)
        assert spent <= STEPS
        last_was_killed = killed
    assert not last_was_killed
    assert charged(folder / "ledger") == STEPS
    end = torch.load(folder / "end", weights_only=True)
    diary = diary_of(folder)
    # Whenever so many updates were made, the weights were these, before a kill and after it.
    seen: dict[int, str] = {}
    for entry in (one for one in diary if "made" in one):
        assert seen.setdefault(entry["made"], entry["weights"]) == entry["weights"]
    if name == "repeatable":
        assert set(released) == set(range(STEPS))
        assert torch.equal(end, ends[kind].weights)
        return kills, 0
    made = {step for entry in diary for step in entry["steps"]}
    lost = diary[-1]["lost"]
    assert len(made) == diary[-1]["made"] == STEPS - lost
    assert set(released) <= made
    assert len(released) == len(set(released))  # no step's number is used again
    assert lost <= kills
    if name == "seeded":
        assert torch.equal(end, leaving_out(set(range(STEPS)) - made, kind))
    return kills, lost


def leaving_out(lost: set[int], kind: str) -> torch.Tensor:
    """The end of an unkilled run that leaves out some steps."""

    def work() -> torch.Tensor:
        torch.manual_seed(1)
        KERNELS.pin()
        run = Run(kind, SETTINGS["seeded"])
        private = run.make()
        while len(private):
            if private.steps_done in lost:
                private.steps_done += 1
            else:
                private.step(next(iter(private)))
        private.close()
        return weights(run.model)

    found: torch.Tensor = in_child(work)
    return found


def points(count: int, fast: int) -> list[Any]:
    """Lives that are drawn at random; those after the first are more of the same."""
    return [
        pytest.param(point, marks=[pytest.mark.slow] if point >= fast else [])
        for point in range(count)
    ]


@pytest.mark.parametrize("point", points(20, fast=4))
def test_a_killed_run_ends_with_the_same_bits(
    point: int, tmp_path: Path, ends: dict[str, End]
) -> None:
    check(point, "repeatable", tmp_path, ends)


@pytest.mark.parametrize("name", ["secure", "seeded", "charged ahead", "correlated"])
@pytest.mark.parametrize("point", points(10, fast=2))
def test_a_killed_run_loses_a_step_a_kill_and_never_counts_less_than_it_released(
    name: str, point: int, tmp_path: Path, ends: dict[str, End]
) -> None:
    check(point, name, tmp_path, ends)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SETTINGS))
def test_two_hundred_kills(
    name: str, tmp_path: Path, ends: dict[str, End], capsys: pytest.CaptureFixture[str]
) -> None:
    kills = lost = runs = 0
    while kills < 200:
        folder = tmp_path / str(runs)
        folder.mkdir()
        more = check(20 + runs, name, folder, ends)
        kills, lost, runs = kills + more[0], lost + more[1], runs + 1
    with capsys.disabled():
        print(f"\n{name}: {runs} runs, {kills} kills, {lost} of {runs * STEPS} steps lost")


def test_kills_by_the_disk_hit(tmp_path: Path, ends: dict[str, End]) -> None:
    """The first and the last call to the disk, so that all between are within reach too."""
    kind = KINDS[0]
    for place, at in enumerate((1, ends[kind].calls)):
        folder = tmp_path / str(place)
        folder.mkdir()

        def until(report: Callable[[int], object], at: int = at, folder: Path = folder) -> None:
            DiskCalls(at)
            life(folder, kind, SETTINGS["repeatable"], report)

        steps, killed = steps_until_killed(until, None)
        assert killed
        assert len(steps) == (0 if place == 0 else STEPS)


@pytest.mark.parametrize("name", ["repeatable", "secure"])
def test_a_torn_line_costs_a_step_and_the_run_stays_within_its_budget(
    name: str, tmp_path: Path, ends: dict[str, End]
) -> None:
    """Power fails while a charge is written: nobody knows whether its step was released."""
    kind = KINDS[0]
    steps_until_killed(lambda report: life(tmp_path, kind, SETTINGS[name], report), 5)
    ledger = tmp_path / "ledger"
    before = charged(ledger)
    with ledger.open("ab") as file:
        file.write(b'{"seq":99,"kind":"charge","of":0,"st')
    _, killed = steps_until_killed(
        lambda report: life(tmp_path, kind, SETTINGS[name], report), None
    )
    assert not killed
    assert charged(ledger) == STEPS
    made = {step for entry in diary_of(tmp_path) for step in entry["steps"]}
    if name == "repeatable":  # it ends a step earlier
        assert made == set(range(STEPS - 1))
    else:  # the number is left out; and so is that of a step in which the kill fell
        assert before not in made
        assert STEPS - 2 <= len(made) <= STEPS - 1
