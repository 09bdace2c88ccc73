"""Worker processes that fetch pieces of a run's steps, run by torch's own ``DataLoader``.

A piece is some records of one step. A worker fetches it as this process would: one record at a
time, with random numbers keyed by the record and the step (``records``). Which worker it is, and
what it fetched before, plays no part.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset, get_worker_info

from plumbline.training.fetch_check import Due
from plumbline.training.records import Records


class WorkersFailed(RuntimeError):
    """A worker process that fetches records has ended, or did not answer in time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Workers:
    """The worker processes that a data loader asks for; its settings, by their names in torch."""

    num_workers: int
    prefetch_factor: int | None = None
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None


@dataclass(frozen=True, eq=False)
class Piece:
    """Some records of a step.

    Attributes:
        step: The step.
        numbers: The records' numbers, ``[R]``.
        key: What their random numbers depend on.
        due: For a piece that repeats records, as a test: what it tests.
    """

    step: int
    numbers: Tensor
    key: str
    due: Due | None = None


class Stream:
    """Pieces, in order, as worker processes fetch them.

    Args:
        records: What they are fetched from.
        workers: How many processes there are, and how they are started.
        pieces: What to fetch; it is asked for more as pieces come in.
    """

    def __init__(self, records: Records, workers: Workers, pieces: Iterable[Piece]) -> None:
        self._awaited: deque[Piece] = deque()
        self._owner = os.getpid()
        with warnings.catch_warnings():
            # That there are more workers than cores was said when the user's loader was made.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader: DataLoader[Any] = DataLoader(
                _Reader(records),
                batch_size=None,
                sampler=self._tasks(pieces),
                collate_fn=_as_it_is,
                num_workers=workers.num_workers,
                prefetch_factor=workers.prefetch_factor,
                pin_memory=workers.pin_memory and torch.accelerator.is_available(),
                timeout=workers.timeout,
                worker_init_fn=_Start(workers.worker_init_fn),
                multiprocessing_context=workers.multiprocessing_context,
                # Not torch's own one, from which the user's code would then draw other numbers.
                generator=workers.generator or torch.Generator(),
            )
            arriving: Any = iter(loader)
        # torch would raise an error wherever this process is when a worker dies, even within an
        # update of the weights. Without this the death is noticed when a piece is waited for.
        torch._C._remove_worker_pids(id(arriving))
        arriving._worker_pids_set = False
        self._arriving = arriving

    @property
    def step(self) -> int | None:
        """The step of the next piece; None after the last one."""
        return self._awaited[0].step if self._awaited else None

    def next(self) -> tuple[Piece, Any]:
        """The next piece, with its records.

        Raises:
            WorkersFailed: If a worker has ended, or did not answer in time.
            RecordError: If a record cannot be read.
        """
        try:
            data = next(self._arriving)
        except RuntimeError as error:
            if str(error).startswith("Caught "):  # in a worker, by code that is not the data set's
                raise
            step = self._awaited[0].step
            raise WorkersFailed(
                f"The records of step {step} were not fetched: {error}. A "
                "worker process ends like this when it is killed, for want of memory perhaps, or "
                "when the data set's code crashes it; the loader's timeout may be too short. "
                "Nothing was charged for the step. A new loop goes on with it, with new workers; "
                "num_workers=0 reads the records in this process, where a crash can be seen."
            ) from None
        piece = self._awaited.popleft()
        if isinstance(data, Exception):
            raise data
        return piece, tree_map(lambda x: x.unpacked() if isinstance(x, _Packed) else x, data)

    def close(self) -> None:
        """Ends the processes."""
        if os.getpid() == self._owner:  # and not a fork of it
            self._arriving._shutdown_workers()

    def _tasks(self, pieces: Iterable[Piece]) -> Iterator[tuple[list[int], str]]:
        for piece in pieces:
            self._awaited.append(piece)
            yield piece.numbers.tolist(), piece.key


class _Reader(Dataset[Any]):
    """The data set of the worker processes: one item is one piece."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __getitem__(self, task: tuple[list[int], str]) -> Any:
        numbers, key = task
        try:
            return tree_map(_packed, self.records.fetch(torch.tensor(numbers), key))
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "plumbline":
                raise
            return error  # as it is: torch would add a traceback to its message


class _Start:
    """What a worker process does first."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        # Ctrl-C goes to workers too, and ``fit`` still makes the step that it has begun.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        info: Any = get_worker_info()
        # What the user's function finds there is the user's data set.
        object.__setattr__(info, "dataset", info.dataset.records.data)
        if self._init is not None:
            self._init(worker)


@dataclass(frozen=True, eq=False)
class _Packed:
    """A small tensor on its way: its bytes are sent, where torch would share memory, which costs
    a connection for each tensor and an open file for as long as it is kept.
    """

    array: NDArray[Any]

    def unpacked(self) -> Tensor:
        return torch.from_numpy(self.array)


def _packed(leaf: Any) -> Any:
    plain = type(leaf) is Tensor and leaf.device.type == "cpu" and not leaf.requires_grad
    if not plain or leaf.nbytes > _SMALL:
        return leaf
    try:
        return _Packed(leaf.numpy())
    except (TypeError, RuntimeError):  # NumPy has no bfloat16, for one
        return leaf


_SMALL = 1 << 16  # bytes


def _as_it_is(data: Any) -> Any:
    return data
