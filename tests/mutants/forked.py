"""Runs tests on copies of the source, each in a forked child of a process that is warmed up.

Importing torch and the rest takes longer than most bugs need to be caught, so it is done once,
before the children are forked; of ``plumbline`` itself nothing is imported here.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.base import ROOT

_WARM = ("torch", "numpy", "pandas", "scipy.stats", "sklearn.linear_model", "dp_accounting.pld")


@dataclass(frozen=True)
class Tests:
    """Some tests to run.

    Attributes:
        source: The copy of ``src`` that they are to import.
        arguments: What pytest is given.
        seconds: How long they may take.
    """

    source: Path
    arguments: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class Ran:
    """What came of them.

    Attributes:
        status: What pytest ended with; None if it took too long.
        output: What it printed.
        seconds: How long it took.
    """

    status: int | None
    output: str
    seconds: float


def all_run(given: Sequence[Tests], jobs: int) -> Iterator[Ran]:
    """Runs all, at most ``jobs`` at a time; yields what came of each, in their order."""
    for name in _WARM:
        importlib.import_module(name)
    waiting, running, done = (
        list(enumerate(given)),
        dict[int, tuple[int, float]](),
        dict[int, Ran](),
    )
    for place in range(len(given)):
        while place not in done:
            while waiting and len(running) < jobs:
                other, tests = waiting.pop(0)
                running[other] = _forked(tests), time.monotonic()
            for other, (pid, began) in list(running.items()):
                tests, took = given[other], time.monotonic() - began
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and took > tests.seconds:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                elif not ended:
                    continue
                del running[other]
                code = os.waitstatus_to_exitcode(status) if ended else None
                done[other] = Ran(code, _log(tests).read_text(errors="replace"), took)
            time.sleep(0.05)
        yield done[place]


def _forked(tests: Tests) -> int:
    """Starts the tests in a child, which has a process group of its own; returns its id."""
    log = os.open(_log(tests), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            os.dup2(log, 1)
            os.dup2(log, 2)
            status = _pytest(tests)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(log)
    return pid


def _pytest(tests: Tests) -> int:
    import pytest

    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(tests.source), "COLUMNS": "300"}
    sys.path.insert(0, str(tests.source))
    import plumbline

    if Path(str(plumbline.__file__)).parent != tests.source / "plumbline":
        raise ImportError(f"the tests would import {plumbline.__file__}, and not the copy")
    options = ["-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    return int(pytest.main([*options, *tests.arguments]))


def _log(tests: Tests) -> Path:
    return tests.source.with_suffix(".log")
