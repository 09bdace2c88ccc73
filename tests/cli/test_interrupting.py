"""Ctrl-C in a real terminal's way: the signal reaches the command and its workers alike.

No duration decides: whichever process makes the third write to a ledger sends the signal itself, so
that a run is under way however fast it is, and however seldom this process gets a turn.
"""

import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import people, small_recipe

pytestmark = pytest.mark.slow


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "plumbline", *map(str, arguments)]


CTRL_C = """
import os, signal

sync, written = os.fsync, []

def watched(descriptor):
    sync(descriptor)
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if os.path.basename(path) == "ledger" and not path.startswith(os.environ["PLUMBLINE_STATE"]):
        written.append(descriptor)
        if len(written) == 3:  # steps are charged fifty at a time
            try:
                os.close(os.open("pressed", os.O_CREAT | os.O_EXCL))  # by one worker, and once
            except FileExistsError:
                return
            os.killpg(0, signal.SIGINT)

os.fsync = watched
"""
"""What every process of the command does as it starts, workers too."""


def interrupted(folder: Path, arguments: list[str]) -> str:
    """Runs a command whose whole process group gets Ctrl-C when it is under way; what it said."""
    start = folder / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(CTRL_C)
    paths = [str(start), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    said = done.stderr
    assert (folder / "pressed").exists(), said
    assert done.returncode == 130, said
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


def test_train(tmp_path: Path) -> None:
    people(tmp_path / "people.csv", 2000)
    arguments = [
        "train",
        "--from-data",
        "--data",
        "people.csv",
        "--target",
        "income",
        "--epochs",
        "80",
    ]
    arguments += ["--batch", "400", "--out", "run", "--method", "dpsgd"]
    said = interrupted(tmp_path, arguments)
    assert "is saved in run" in said
    assert "Going on with the run in run" in goes_on(tmp_path, arguments)
    # What was charged is what was planned: nothing was lost, and nothing made twice.
    (result,) = (path.read_text() for path in (tmp_path / "run").rglob("result.json"))
    trained = 2000 - sum(json.loads(result)["report"]["sizes"].values())
    assert json.loads(result)["steps"] == math.ceil(80 * trained / 400)
    assert "results lost" not in result


def test_compare(tmp_path: Path) -> None:
    small_recipe(tmp_path, steps=120)
    arguments = ["compare", "small.toml", "--workers", "2", "--no-page"]
    said = interrupted(tmp_path, arguments)
    assert "of 4 runs are finished and kept in" in said
    goes_on(tmp_path, arguments)
    assert len(list(tmp_path.rglob("result.json"))) == 4
    for path in tmp_path.rglob("result.json"):
        assert '"steps": 120' in path.read_text()


def test_tune(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    small_recipe(tmp_path, steps=80)
    arguments = ["tune", "small.toml", "--workers", "2"]
    said = interrupted(tmp_path, arguments)
    assert "trials are finished and kept in" in said
    goes_on(tmp_path, arguments)
    assert (tmp_path / "runs" / "small" / "tuned.toml").is_file()
