"""Loops over many numbers: compiled by numba, and run by as many threads as torch uses.

Numba takes half a second to import, so modules with compiled loops are imported where the first of
them is called, and only for work that is worth it.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(*signatures: str, fuse: bool = False, reorder: bool = False) -> Callable[[Loop], Loop]:
    """A loop as machine code that runs without Python's lock, kept on the disk if possible.

    It is compiled, or loaded, when it is defined; without signatures, when it is first called.
    Additions and multiplications are done one by one in the order in which they are written.

    Args:
        signatures: The types of its arguments, in numba's words; one for each combination.
        fuse: Whether an addition may be one instruction with the multiplication before it.
        reorder: Whether sums may also be taken in another order, by vector instructions.
    """
    import numba

    def compile_(loop: Loop) -> Loop:
        loose: set[str] = {"contract"} if fuse or reorder else set()
        loose |= {"reassoc", "nsz"} if reorder else set()
        compiler = partial(numba.njit, [*signatures] or None, nogil=True, fastmath=loose)
        try:
            made: Any = compiler(cache=True)(loop)
        except (RuntimeError, OSError):  # nowhere to keep it: compile it in every process
            made = compiler()(loop)
        return cast(Loop, made)

    return compile_


@contextlib.contextmanager
def run_of(steps: int) -> Iterator[None]:
    """Inside, what is computed is a step of a run of so many.

    Loading numba and its loops takes a second or two: a long run pays for loops that a short one
    does better without. The choice depends on the run's length alone, so that a run that is resumed
    adds its numbers in the same order.
    """
    global _steps
    before, _steps = _steps, steps
    try:
        yield
    finally:
        _steps = before


_steps = 0


def worth_loading() -> bool:
    """Whether even short loops should be compiled ones, since the run is long."""
    return _steps >= _LONG


_LONG = 2000
"""Steps from which on a run pays for loading loops that save half a millisecond a step."""


def in_threads(work: Callable[[int, int], object], size: int, least: int) -> None:
    """Calls ``work(start, stop)`` for parts of ``0 .. size - 1``, at once if there are threads.

    Args:
        work: What is done; it should let go of Python's lock.
        size: How much there is to do.
        least: What a thread of its own pays for.
    """
    parts = max(1, min(torch.get_num_threads(), size // least))
    edges = [size * part // parts for part in range(parts + 1)]
    at_once([partial(work, start, stop) for start, stop in itertools.pairwise(edges)])


_FOR_THREADS = 1 << 23
"""Multiplications from which on waking threads pays."""


class Together:
    """Loops that are noted first, and then run at once: waking the threads takes its time.

    Attributes:
        worth: Whether even a short loop should be noted, since there are many.
    """

    def __init__(self, worth: bool = False) -> None:
        self.worth = worth
        self._loops: list[tuple[Callable[[int, int], object], int]] = []
        self._cost = 0

    def add(self, work: Callable[[int, int], object], size: int, cost: int = _FOR_THREADS) -> None:
        """Notes ``work``, to be called for parts of ``0 .. size - 1``.

        Args:
            work: What is done; it should let go of Python's lock.
            size: How much there is to do.
            cost: How many multiplications that is; by default enough for several threads.
        """
        self._loops.append((work, size))
        self._cost += cost

    def run(self) -> None:
        """Runs all that was noted; each thread gets a part of every loop."""
        loops, self._loops = self._loops, []
        cost, self._cost = self._cost, 0

        def part(number: int, parts: int) -> None:
            for work, size in loops:
                work(size * number // parts, size * (number + 1) // parts)

        if loops:
            threads = torch.get_num_threads() if cost >= _FOR_THREADS else 1
            at_once([partial(part, number, threads) for number in range(threads)])


def at_once(works: Sequence[Callable[[], object]]) -> None:
    """Calls all of these, each in a thread of its own if there are enough.

    The threads are those of torch's OpenMP library where it has GNU's: they wait for work in a busy
    loop, which would take the cores from threads of ours. What one of them raises is raised here,
    once all have ended.
    """
    left = collections.deque(works)
    failed: list[BaseException] = []

    def run(_: object = None) -> None:
        while left:
            with contextlib.suppress(IndexError):  # another thread took the last one
                work = left.popleft()
                try:
                    work()
                except BaseException as error:  # raised again below
                    failed.append(error)

    parallel = _openmp() if len(works) > 1 else None
    if parallel is not None and os.getpid() == _PROCESS:
        parallel(_REGION(run), None, len(works), 0)
    else:  # a forked child has none of its parent's threads
        threads = [threading.Thread(target=run) for _ in works[1:]]
        for thread in threads:
            thread.start()
        run()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


_PROCESS = os.getpid()
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@functools.cache
def _openmp() -> Callable[..., None] | None:
    """``GOMP_parallel`` of the OpenMP library that torch has loaded: runs a region in threads."""
    try:
        parallel: Any = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):  # another library, or Windows
        return None
    parallel.argtypes = [_REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return cast(Callable[..., None], parallel)
