"""Calls the command line as a shell would, in this process; and a small table to train on."""

import contextlib
import functools
import io
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from plumbline import cli
from plumbline.cli.app import app

_make_commands = typer.main.get_command


@functools.cache
def _commands(*_: object) -> Any:
    return _make_commands(app)


def _known_commands(app: typer.Typer) -> Any:
    """What typer makes of the commands' signatures, in 50 ms: once for the same functions."""
    return _commands(*(command.callback for command in app.registered_commands))


class Called:
    """The command line, with what the last call printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setattr(typer.main, "get_command", _known_commands)
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str | Path) -> int:
        """Its exit code."""
        self._monkeypatch.setattr(sys, "argv", ["plumbline", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code

    @property
    def json(self) -> Any:
        """What was printed, for machines."""
        return json.loads(self.out)


def call_once(folder: Path, *arguments: str | Path) -> str:
    """Calls a command that must succeed, for several tests; returns what it printed.

    Each test works on a copy, by ``copy_here``: the folder has the command's state with it.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        patch.chdir(folder)
        patch.setenv("PLUMBLINE_DATA", str(folder / "data"))
        patch.setenv("PLUMBLINE_STATE", str(folder / "state"))
        patch.setattr(sys, "argv", ["plumbline", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert end.value.code == 0, err.getvalue()
    return out.getvalue()


def copy_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies what commands called by ``call_once`` have left to the current folder."""
    shutil.copytree(folder, Path(), dirs_exist_ok=True)
    monkeypatch.setenv("PLUMBLINE_STATE", str(Path("state").absolute()))


def people(path: Path, count: int = 400) -> Path:
    """A table in which income follows from age and city, for two sexes and three cities."""
    draw = random.Random(0)
    lines = ["age,city,sex,hours,income"]
    for _ in range(count):
        age, city = draw.randint(18, 80), draw.choice(["Rome", "Oslo", "Lima"])
        high = age + 20 * (city == "Oslo") + draw.gauss(0, 5) > 55
        sex, hours = draw.choice("fm"), draw.randint(10, 60)
        lines.append(f"{age},{city},{sex},{hours},{'high' if high else 'low'}")
    path.write_text("\n".join(lines) + "\n")
    return path


RECIPE = """
name = "small"
seeds = [0, 1]
baseline = "DPSGD"
log_every = STEPS

[data]
name = "adult"

[model]
name = "adult-mlp"
options = { hidden = 8 }

[budget]
noise_multiplier = 1.0
delta = 1e-5
steps = STEPS
expected_batch_size = 32

[optimizer]
name = "sgd"
learning_rate = 0.1

[tune]
trials = 2

[[methods]]
name = "nonprivate"
label = "non-private"

[[methods]]
name = "dpsgd"
label = "DPSGD"
settings = { clip = 0.5 }
"""


def small_recipe(folder: Path, steps: int = 8) -> Path:
    """A recipe that runs in about a second."""
    path = folder / "small.toml"
    path.write_text(RECIPE.replace("STEPS", str(steps)))
    return path
