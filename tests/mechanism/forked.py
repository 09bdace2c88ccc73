"""Runs a function in a forked child, for tests of what a process loses or must not share."""

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any


def in_child(work: Callable[[], Any]) -> Any:
    """The result of `work()` in a forked child; its failure is this process's failure."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = (True, work())
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    succeeded, result = pickle.loads(text)
    assert succeeded, result
    return result


def reports_until_killed(work: Callable[[Callable[[], None]], None], kill_after: int | None) -> int:
    """How often `work(report)` reported in a forked child before it was killed.

    The child gets SIGKILL after its `kill_after`-th report has been read, wherever it is by then;
    with None it is expected to kill itself.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(lambda: os.write(write_end, b"."))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        reports = 0
        while reports != kill_after and pipe.read(1):
            reports += 1
        if kill_after is not None:
            os.kill(child, signal.SIGKILL)
        reports += len(pipe.read())
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself"
    assert os.WTERMSIG(status) == signal.SIGKILL
    return reports
