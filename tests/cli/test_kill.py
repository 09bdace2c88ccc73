"""``plumbline train`` killed again and again: nothing is lost, nothing is charged too little.

A life of the command is a forked child. It is killed at one of its calls to the disk, before or
after it, or by its parent as soon as the ledger has so many lines, wherever it is by then.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plumbline import cli
from plumbline.experiments import Recipe, RunSpec, run
from plumbline.experiments.files import read_rows
from plumbline.experiments.verification import CONTRADICTED, verify
from plumbline.mechanism.ledger import Ledger
from plumbline.training import keeping
from tests.cli.calling import people, small_recipe
from tests.training.test_kill import DiskCalls

STEPS = 8
CALLS = 90  # to the disk, at most, in a life
RECIPE = ["train", "small.toml", "--method", "DPSGD"]
OWN = [
    "train",
    "--from-data",
    "--data",
    "people.csv",
    "--target",
    "income",
    "--method",
    "dpsgd",
    "--epochs",
    "2",
]
OWN += ["--batch", "80", "--accept-loss"]


def life(arguments: list[str], before: Callable[[], object], lines: int | None) -> bool:
    """Runs the command in a child; whether it was killed. It is to end well if it was not."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with Path("said").open("w") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            sys.argv = ["plumbline", *arguments]
            before()
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 71
        finally:
            os._exit(code)
    pid = status = 0
    while not pid:
        pid, status = os.waitpid(child, 0 if lines is None else os.WNOHANG)
        if not pid and _most_lines() >= (lines or 0):
            os.kill(child, signal.SIGKILL)
            lines = None
        time.sleep(0.001)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0, Path("said").read_text()
    return False


def _most_lines() -> int:
    counts = [path.read_bytes().count(b"\n") for path in Path().rglob("ledger")]
    return max(counts, default=0)


def charged() -> int:
    return sum(count for path in Path().rglob("ledger") for _, count in Ledger.read(path).entries())


def released() -> int:
    """The steps whose results were seen: the rows of metrics are written after them."""
    rows = [row["step"] for path in Path().rglob("metrics.jsonl") for row in read_rows(path)]
    return max(rows, default=0)


def story(arguments: list[str], kills: int, chance: random.Random) -> int:
    """Lives of one run, killed so many times or until it is finished; how often it was killed."""
    done = 0
    while done < kills:
        if chance.random() < 0.7:
            at, early = chance.randint(1, CALLS), chance.random() < 0.5
            killed = life(arguments, lambda at=at, early=early: DiskCalls(at, early), None)  # type: ignore[misc]
        else:
            killed = life(arguments, lambda: None, chance.randint(1, STEPS + 3))
        assert released() <= charged() <= STEPS
        if not killed:
            break
        done += 1
    assert not life(arguments, lambda: None, None)
    assert charged() == STEPS
    return done


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the recipe's run that nobody disturbed, made here."""
    root = tmp_path_factory.mktemp("whole")
    small_recipe(root, steps=STEPS)
    spec = RunSpec(recipe := Recipe.read(root / "small.toml"), recipe.methods[1], 0)
    # Here, so that no child has to load the data and compute epsilon again.
    return root / run(spec, root).folder


def finished(folder: Path, whole: Path | None) -> None:
    found = verify(folder)
    assert not found.of(CONTRADICTED)
    assert not (folder / "checkpoint.pt").exists()
    if whole is not None:  # a run that can be repeated comes out the same
        one, other = (json.loads((of / "result.json").read_text()) for of in (folder, whole))
        assert one["report"] == other["report"]
        assert one["epsilon"] == other["epsilon"]
        assert (folder / "model.pt").read_bytes() == (whole / "model.pt").read_bytes()


@pytest.mark.parametrize("kind", ["a recipe", "a table of one's own"])
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random(
    kind: str, kills: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{kind} {kills}")
    # A checkpoint after every step, so that there is much to interrupt.
    monkeypatch.setattr(keeping, "_SECONDS", 0.0)
    monkeypatch.setattr(keeping, "_SHARE", 0)
    done = number = 0
    while done < kills:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        small_recipe(folder, steps=STEPS)
        people(folder / "people.csv")
        arguments = RECIPE if kind == "a recipe" else OWN
        done += story(arguments, min(5, kills - done), chance)
        ends = list(folder.glob("runs/**/result.json"))
        assert len(ends) == 1
        finished(ends[0].parent, whole if kind == "a recipe" else None)
        made = json.loads(ends[0].read_text())["steps"]
        assert made >= STEPS - (0 if kind == "a recipe" else done)
    assert done == kills
