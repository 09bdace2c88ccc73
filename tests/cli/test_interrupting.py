"""Ctrl-C in a real terminal's way: the signal reaches the command and its workers alike."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.calling import people, small_recipe

pytestmark = pytest.mark.slow


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "plumbline", *map(str, arguments)]


def interrupted(folder: Path, arguments: list[str], ready: Callable[[], bool]) -> str:
    """Runs a command, sends Ctrl-C to its whole process group once ready; what it said."""
    process = subprocess.Popen(
        command(*arguments),
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # No duration decides: it waits until the files show that a run is under way, or it has ended.
    while process.poll() is None and not ready():
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert shlex.join(["plumbline", *arguments]) in said
    return said


def goes_on(folder: Path, arguments: list[str]) -> str:
    done = subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def charges(folder: Path) -> Iterator[int]:
    """How many lines each ledger below a folder has."""
    for path in folder.rglob("ledger"):
        yield path.read_bytes().count(b"\n")


def test_train(tmp_path: Path) -> None:
    people(tmp_path / "people.csv", 2000)
    arguments = ["train", "--data", "people.csv", "--target", "income", "--epochs", "80"]
    arguments += ["--batch", "400", "--out", "run", "--method", "dpsgd"]
    said = interrupted(
        tmp_path, arguments, lambda: any(count > 8 for count in charges(tmp_path / "run"))
    )
    assert "is saved in run" in said
    assert "Going on with the run in run" in goes_on(tmp_path, arguments)
    assert (tmp_path / "run" / "result.json").is_file()
    # What was charged is what was planned: nothing was lost, and nothing made twice.
    result = (tmp_path / "run" / "result.json").read_text()
    assert '"steps": 320' in result
    assert "results lost" not in result


def test_compare(tmp_path: Path) -> None:
    small_recipe(tmp_path, steps=120)
    arguments = ["compare", "small.toml", "--workers", "2", "--no-page"]
    said = interrupted(
        tmp_path, arguments, lambda: any(count > 8 for count in charges(tmp_path / "runs"))
    )
    assert "of 4 runs are finished and kept in" in said
    goes_on(tmp_path, arguments)
    assert len(list(tmp_path.rglob("result.json"))) == 4
    for path in tmp_path.rglob("result.json"):
        assert '"steps": 120' in path.read_text()


def test_tune(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    small_recipe(tmp_path, steps=80)
    arguments = ["tune", "small.toml", "--workers", "2"]
    said = interrupted(
        tmp_path, arguments, lambda: any(count > 8 for count in charges(tmp_path / "runs"))
    )
    assert "The search is seeded" in said
    goes_on(tmp_path, arguments)
    assert (tmp_path / "runs" / "small" / "tuned.toml").is_file()
