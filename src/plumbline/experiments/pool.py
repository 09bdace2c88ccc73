"""Runs in parallel: one process for each core, and progress for each run.

A run has one thread of torch's, so that processes do not fight, and its result does not depend on
how many there are. Objects given in Python go to the processes with the runs that need them. A run
that is finished is read, not repeated. An interrupt ends the processes at once and in silence:
whatever they had saved is where the next session goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import cloudpickle

from plumbline.experiments.charging import Named, Part
from plumbline.experiments.compatibility import check_fits, parts_of
from plumbline.experiments.objects import OBJECTS
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_result import RunResult, read_result
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import run

POLL_SECONDS = 0.25


@dataclass
class Progress:
    """How far the runs are.

    Attributes:
        done: How many are finished.
        total: Of how many.
        running: Those at work: name to (steps done, steps).
        what: What they are: runs, or the trials of a search.
    """

    done: int
    total: int
    running: dict[str, tuple[int, int]] = field(default_factory=dict)
    what: str = "runs"


OnProgress = Callable[[Progress], None]


class Waiting(NamedTuple):
    """Runs that are to be made: below which folder, told to whom, and charged where."""

    specs: Sequence[RunSpec]
    root: Path
    progress: Progress
    tell: OnProgress
    ledger: Named


class Workers:
    """Processes that make runs, to be used in a ``with`` block.

    Args:
        workers: How many runs at a time; one for each core by default. With 1 they are made here.
    """

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers is {workers}; there must be at least 1.")
        self._workers = workers or _cores()
        self._pool: ProcessPoolExecutor | None = None
        self._steps: Any = None
        self._fitting: set[str] = set()

    @classmethod
    @contextmanager
    def of(cls, workers: int | Workers | None) -> Iterator[Workers]:
        """New processes that end with the block, or those given, which go on."""
        if isinstance(workers, Workers):
            yield workers
            return
        with cls(workers) as made:
            yield made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def run(
        self,
        specs: Sequence[RunSpec],
        root: Path,
        on_progress: OnProgress | None = None,
        ledger: Named = None,
    ) -> list[RunResult]:
        """Makes the runs that are not finished yet; the results of all, in order.

        Args:
            specs: The runs.
            root: The folder of the experiment.
            on_progress: Called with a `Progress` now and then.
            ledger: Where they are charged, as of ``run``.

        Raises:
            RecipeError: Before the first of them, if the network of one cannot take its data.
        """
        progress = Progress(0, len(specs))
        waiting = [spec for spec in specs if read_result(root / spec.folder) is None]
        progress.done = len(specs) - len(waiting)
        tell = on_progress or (lambda _: None)
        self._check_fitting(waiting)
        tell(progress)
        self._make(Waiting(waiting, root, progress, tell, ledger))
        return [run(spec, root) for spec in specs]

    def of_row(self, place: int) -> Workers:
        """Those that make the trials of the row at a place: these; of a part, see ``sharding``."""
        return self

    def _check_fitting(self, specs: Sequence[RunSpec]) -> None:
        for spec in specs:
            if parts_of(spec) not in self._fitting:
                check_fits(spec)
                self._fitting.add(parts_of(spec))

    def _make(self, runs: Waiting) -> None:
        if self._workers == 1:
            _here(runs)
        elif runs.specs:
            self._in_processes(runs)

    def _in_processes(self, runs: Waiting) -> None:
        pool, progress = self._started(), runs.progress
        waiting: dict[Future[None], str] = {
            pool.submit(_in_process, packed(spec), str(runs.root), runs.ledger): spec.name
            for spec in runs.specs
        }
        while waiting:
            done, _ = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            while not self._steps.empty():
                name, step, steps = self._steps.get()
                progress.running[name] = (step, steps)
            for one in done:
                progress.running.pop(waiting.pop(one), None)
                progress.done += 1
                one.result()
            runs.tell(progress)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = _context()
            self._steps = context.SimpleQueue()
            self._pool = ProcessPoolExecutor(
                self._workers,
                mp_context=context,
                initializer=_initialise,
                initargs=(self._steps, dict(os.environ)),
            )
        return self._pool


def _here(runs: Waiting) -> None:
    progress = runs.progress
    for spec in runs.specs:

        def stepped(step: int, steps: int, name: str = spec.name) -> None:
            progress.running = {name: (step, steps)}
            runs.tell(progress)

        told, part = _seldom(stepped), part_of(spec)
        run(spec, runs.root, on_progress=told, ledger=runs.ledger, part=part)
        progress.running = {}
        progress.done += 1
        runs.tell(progress)


def part_of(spec: RunSpec) -> Part:
    """What a run is made for: a trial is judged on records held out."""
    return "trial" if spec.held_out else "comparison"


def _seldom(on_progress: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Passes on a few steps a second: more would only cost time."""
    last = 0.0

    def passed_on(step: int, steps: int) -> None:
        nonlocal last
        if time.monotonic() - last > POLL_SECONDS:
            last = time.monotonic()
            on_progress(step, steps)

    return passed_on


def _context() -> BaseContext:
    """How processes start: as copies of one that has imported everything, where there are forks.

    Not as copies of this one, which would have torch's threads in them, half alive.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # Optimizers import torch._dynamo when the first of them is made.
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    return context


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_steps: Any = None  # in a worker process: where it tells its steps


def _initialise(steps: Any, environment: dict[str, str]) -> None:
    global _steps
    _steps = steps
    os.environ.clear()  # it may be that of an earlier time
    os.environ.update(environment)
    # A terminal's Ctrl-C reaches every process: the first one says what is kept, these only end.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    # And where the first one is killed, so that it can end nobody, they end with it.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    parent.join()
    os._exit(1)


def packed(spec: RunSpec) -> bytes:
    """A run with the objects that it names, also functions that were typed at a prompt."""
    names = (spec.data.name, spec.model.name, spec.optimizer.name, spec.method.name)
    used = {name: OBJECTS[name] for name in (*names, spec.recipe.loss.name) if name in OBJECTS}
    try:
        content: bytes = cloudpickle.dumps((spec, used))
    except Exception as error:  # an open file, a lock: each kind of object fails in its own way
        raise RecipeError(
            f"The objects of {spec.name} cannot be passed to another process ({error}). Make the "
            "runs in this one: workers=1."
        ) from error
    return content


def unpacked(content: bytes) -> RunSpec:
    """A run that came from another process; its objects are known here from now on."""
    spec: RunSpec
    spec, used = cloudpickle.loads(content)
    for name, part in used.items():
        OBJECTS.setdefault(name, part)  # the first copy stays, so that its data are loaded once
    return spec


def _in_process(content: bytes, root: str, ledger: Named) -> None:
    spec = unpacked(content)
    stepped = _seldom(lambda step, steps: _steps.put((spec.name, step, steps)))
    run(spec, root, on_progress=stepped, ledger=ledger, part=part_of(spec))
