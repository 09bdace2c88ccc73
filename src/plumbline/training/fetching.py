"""The records of a run's steps, fetched ahead by worker processes where a data loader asks for any.

Which records a step takes is known beforehand, since sampling is keyed by the step. So workers
fetch those of the next steps while this process trains.

Guarantee: a record is the same whichever process fetches it. Pieces that workers fetched are joined
by the rules of ``stacking``; and that a data set is the same in every process is part of what the
fetch check tests.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from plumbline.mechanism.random_source import RandomSource
from plumbline.training.fetch_check import Due, FetchCheck
from plumbline.training.records import Records, mapped, to_device
from plumbline.training.stacking import Padding, stack
from plumbline.training.worker_stream import Piece, Stream, Workers


class Fetching:
    """Gives the records of a run's steps.

    Args:
        records: What is fetched from.
        source: The run's randomness, from which each step's key comes.
        chunks: The records of a step, in the chunks in which this process will want them: a method
            of the run, which is referred to weakly, so that a run that goes away ends its workers.
        stop: The step at which the run ends.
        workers: The processes that fetch ahead; by default none. Rows of tensors need none:
            selecting them takes less time than sending them.
    """

    def __init__(
        self,
        records: Records,
        source: RandomSource,
        chunks: Callable[[int], list[Tensor]],
        stop: int,
        workers: Workers | None = None,
    ) -> None:
        self._records = records
        self._source = source
        self._chunks = weakref.WeakMethod(chunks)
        self._stop = stop
        self._workers = None if records.selected else workers
        self._check = FetchCheck(records, source)
        self._stream: Stream | None = None
        self._step = -1
        self._held: list[tuple[Tensor, Any]] = []  # what has come for this step: numbers, records
        self._repeated: tuple[Due, Any] | None = None  # and for its check

    def key(self, step: int) -> str:
        """The key of the records' own random numbers in a step."""
        return self._source.stream("draws", step).bytes(16).hex()

    def begin(self, step: int) -> None:
        """Turns to a step; what was fetched for another one is let go."""
        if self._workers is None:
            return
        if step < self._step:
            self.close()
        if self._stream is None:
            self._stream = Stream(
                self._records, self._workers, self._pieces(step, self._workers.num_workers)
            )
        if step != self._step:
            self._step, self._held, self._repeated = step, [], None

    def fetch(self, indices: Tensor, step: int, device: torch.device) -> Any:
        """Some records (``[R]``, at least one) as a step sees them, on a device.

        Raises:
            RecordError: If one cannot be read.
            WorkersFailed: If a worker process has ended.
        """
        if self._stream is None or step != self._step:
            return to_device(self._read(indices, step), device)
        indices = indices.cpu()
        parts, found = self._of_workers(indices, device)
        others = indices[~torch.isin(indices, found)]
        if len(others):  # such as records that a probe looks at
            parts.append(to_device(self._read(others, step), device))
        return _in_order(_joined(parts), torch.cat([found, others]), indices)

    def check(self, indices: Tensor, step: int) -> None:
        """Tests before a step that records look the same in any company, if a test is due.

        Raises:
            RecordsMixError: If one does not.
        """
        if self._stream is None or step != self._step:
            self._check.test(indices, step, self.key)
            return
        if not self._held:
            self._pull()  # what is due comes first
        if self._repeated is not None:
            due, again = self._repeated
            due.require_equal(self.fetch(due.watched, step, torch.device("cpu")), again)

    def close(self) -> None:
        """Ends the worker processes; ``begin`` starts new ones."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._step, self._held, self._repeated = None, -1, [], None

    def _read(self, indices: Tensor, step: int) -> Any:
        """The records, fetched by this process."""
        return self._records.fetch(indices, "" if self._records.selected else self.key(step))

    def _pieces(self, start: int, workers: int) -> Iterator[Piece]:
        """What workers fetch: for each step a piece for each of them, or several for each chunk."""
        for step in range(start, self._stop):
            chunks = self._chunks_of(step)
            if not chunks:
                continue
            indices, key = torch.cat(chunks), self.key(step)
            due = self._check.due(indices, step)
            if due is not None:
                yield Piece(step, due.again, key, due)
            for chunk in chunks:
                for some in torch.split(chunk, -(-len(indices) // workers)):
                    yield Piece(step, some, key)

    def _chunks_of(self, step: int) -> list[Tensor]:
        chunks = self._chunks()
        return [] if chunks is None else chunks(step)

    def _pull(self) -> bool:
        """Takes the next piece of this step from the workers; whether there was one."""
        assert self._stream is not None
        while self._stream.step is not None and self._stream.step <= self._step:
            piece, data = self._stream.next()
            if piece.step == self._step:
                if piece.due is None:
                    self._held.append((piece.numbers, data))
                else:
                    self._repeated = piece.due, data
                return True
        return False

    def _of_workers(self, indices: Tensor, device: torch.device) -> tuple[list[Any], Tensor]:
        """Those of the records that workers fetch for this step, in parts, and their numbers."""
        while True:
            wanted = [torch.isin(numbers, indices) for numbers, _ in self._held]
            if sum(int(one.sum()) for one in wanted) >= len(indices) or not self._pull():
                break
        parts, found = [], [torch.zeros(0, dtype=torch.long)]
        for (numbers, data), some in zip(self._held, wanted, strict=True):
            if bool(some.any()):
                whole = bool(some.all())
                parts.append(
                    to_device(data if whole else _rows(data, some.nonzero()[:, 0]), device)
                )
                found.append(numbers[some])
        return parts, torch.cat(found)


def _joined(parts: list[Any]) -> Any:
    """Batches of some records each, as one batch; always a copy."""
    # The first record of each is enough to see whether they fit together.
    stack([_rows(part, torch.zeros(1, dtype=torch.long)) for part in parts], Padding(None))
    return tree_map(
        lambda *leaves: torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *parts
    )


def _in_order(data: Any, numbers: Tensor, indices: Tensor) -> Any:
    """The rows of ``data``, which are the records ``numbers``, in the order of ``indices``."""
    if torch.equal(numbers, indices):
        return data
    ascending, order = numbers.sort()
    return _rows(data, order[torch.searchsorted(ascending, indices)])


def _rows(data: Any, places: Tensor) -> Any:
    return mapped(
        lambda x: x.index_select(0, places.to(x.device)) if isinstance(x, Tensor) else x, data
    )
