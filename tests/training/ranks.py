"""Several processes that make one run: forked children in a gloo group of their own.

A fork costs milliseconds where a new Python with torch costs seconds. Whatever a child does, it
ends: one that hangs is killed after a minute or two, and that is a failure of the test.
"""

import os
import pickle
import select
import signal
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.training import small
from tests.training.runs import BUDGET, RECORDS, Run

PATIENCE = 150.0  # seconds; no test waits for it unless something hangs


@dataclass
class Ended:
    """How a rank ended: with a value, with an error, or killed (neither)."""

    value: Any = None
    error: BaseException | None = None
    text: str = ""
    killed: bool = False


def in_ranks(
    count: int,
    work: Callable[[int], Any],
    folder: Path,
    *,
    timeout: float = 100.0,
    group: bool = True,
) -> list[Ended]:
    """What ``work(rank)`` comes to on each of ``count`` ranks.

    Args:
        count: How many ranks.
        work: What each does.
        folder: For the ranks to find each other through.
        timeout: After how many seconds a rank gives up on another.
        group: Whether they are in a process group when the work begins, if they are several.
    """
    meeting = folder / f"meeting-{uuid.uuid4().hex}"
    joined = count if group else 1
    children = [_forked(rank, joined, work, meeting, timeout) for rank in range(count)]
    processes = [process for process, _ in children]
    deadline = time.monotonic() + PATIENCE
    try:
        return [_ended(process, pipe, deadline) for process, pipe in children]
    finally:
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it was waited for


def warm() -> None:
    """Here, so that no child has to do it: torch imports half of itself for its first optimizer.

    And epsilon is cached. No ``Private`` is made: its threads would not survive the fork.
    """
    Run("dropout")
    BUDGET.resolve(RECORDS)
    for expected in (1, 4, 10):
        small.budget(expected_batch_size=expected).resolve(small.RECORDS)


def values(ended: list[Ended]) -> list[Any]:
    """What the ranks returned; fails with the first error."""
    for one in ended:
        assert one.error is None, one.text
        assert not one.killed
    return [one.value for one in ended]


def _forked(
    rank: int, count: int, work: Callable[[int], Any], meeting: Path, timeout: float
) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    process = os.fork()
    if process:
        os.close(write_end)
        return process, read_end
    try:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if count > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{meeting}",
                rank=rank,
                world_size=count,
                timeout=timedelta(seconds=timeout),
            )
        ended = Ended(work(rank))
    except BaseException as error:
        ended = Ended(error=error, text=traceback.format_exc())
    try:
        data = pickle.dumps(ended)
    except Exception:  # an error that cannot be passed on
        data = pickle.dumps(Ended(error=RuntimeError(ended.text), text=ended.text))
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(data)
    os._exit(0)


def _ended(process: int, pipe: int, deadline: float) -> Ended:
    data = b""
    with os.fdopen(pipe, "rb", buffering=0) as stream:
        while True:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([stream], [], [], max(0.0, left))
            assert ready, f"a rank hangs (process {process})"
            part = stream.read(1 << 16)
            if not part:
                break
            data += part
    os.waitpid(process, 0)
    return pickle.loads(data) if data else Ended(killed=True)
