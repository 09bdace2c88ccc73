"""The processes ("ranks") of one run: how they meet, add up and fail together.

A run on N ranks is the run of one process with its sums cut into N parts: every rank draws the same
batch and takes the gradients of its share, and what is asked is added up where it is answered. No
method, evaluation or clipping knows of ranks. Alone, a rank meets nobody and nothing changes.

Guarantee: no rank waits for ever. Before anything is exchanged all ranks *meet*: each says where it
stands and whether something has failed there, so that what fails on one fails on all, with an
error, and so do ranks that stand at different places. A rank that has died is noticed by the
connection that it leaves behind, one that hangs by the process group's timeout.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from plumbline.mechanism.ledger import BudgetExceeded, LedgerError, NoiseReuse
from plumbline.training.checkpoint_file import CheckpointError

Made = TypeVar("Made")

_SIZE = 2048  # bytes of what a rank says when it meets the others
_TEXT = 1200  # characters of it that an error's words may take
_AGAIN = (
    "Start the run again, with any number of processes: it goes on from its last checkpoint, and "
    "what was charged stays charged."
)


class RankFailed(RuntimeError):
    """Something failed on another rank, whose own error says what."""


class RankLost(RuntimeError):
    """Another rank has ended, or does not answer."""


class RanksDisagree(RuntimeError):
    """Ranks are not at the same place, or do not have the same state."""


_KINDS: dict[str, type[RuntimeError]] = {
    kind.__name__: kind for kind in (BudgetExceeded, NoiseReuse, LedgerError, CheckpointError)
}
"""What is raised on every rank as what it was on one; everything else is a ``RankFailed``."""


class Ranks:
    """The processes that make a run together; ``Ranks.here()`` finds them.

    Attributes:
        rank: This process's number.
        count: How many there are, N.
        said: What each of them marked when they last met, by rank.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count
        self.said = [""] * count
        self._over = False
        self._wishes: set[str] = set()
        self._granted: set[str] = set()
        if count == 1:
            return
        backend = str(dist.get_backend_config())
        # Words go between processors, by gloo; tensors go where the backend moves them.
        self._words = None if "gloo" in backend else dist.new_group(backend="gloo")
        self._device: torch.device | None = None  # where each tensor is
        if "nccl" not in backend:
            self._device = torch.device("cpu")
        elif "gloo" not in backend:
            self._device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def here(cls) -> Ranks:
        """The processes of the initialised process group, or this one alone.

        Raises:
            RuntimeError: If torchrun has started several processes that do not know each other:
                each would train, and spend, by itself.
        """
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if dist.is_available() and dist.is_torchelastic_launched() and started > 1:
            raise RuntimeError(
                f"torchrun has started {started} processes, but they have no process group: each "
                "would make a run of its own, and charge it. Call "
                'torch.distributed.init_process_group("gloo") (or "nccl") before make_private.'
            )
        return cls()

    @property
    def first(self) -> bool:
        """Whether this is the rank that has the ledger, writes files and shows progress."""
        return self.rank == 0

    def meet(self, at: str, mark: str = "") -> list[str]:
        """Waits for all ranks; returns what each has marked, by rank.

        Args:
            at: Where this rank stands; it must be the same for all.
            mark: A few words for the others.

        Raises:
            RankFailed: If something has failed on another rank; a failure of the ledger or of a
                checkpoint is raised as what it is.
            RanksDisagree: If another rank stands at another place.
            RankLost: If a rank has ended or does not answer in time.
        """
        if self.count == 1:
            self.said = [mark]
            return self.said
        met = self._exchanged(_Word(at, mark, sorted(self._wishes)))
        failed = next((place for place, word in enumerate(met) if word.error), None)
        if failed is not None:
            self._over = True
            raise met[failed].failure(failed)
        places = {word.at for word in met}
        if len(places) > 1:
            self._over = True
            where = "; ".join(f"rank {place} is at {word.at}" for place, word in enumerate(met))
            raise RanksDisagree(
                f"The processes of the run do different things: {where}. Every process must make "
                "the same calls (step, save) in the same order; let rank 0 alone decide, and not a "
                "clock or a file that each of them looks at."
            )
        granted = {wish for word in met for wish in word.wishes}
        self._granted |= granted
        self._wishes -= granted
        self.said = [word.mark for word in met]
        return self.said

    def tell(self, error: Exception) -> None:
        """Makes the other ranks fail when they meet next; does nothing if they know already."""
        if self.count == 1 or self._over:
            return
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text = f"{type(error).__name__}: {error}"
        try:
            self._exchanged(_Word("an error", error=text[:_TEXT], kinds=kinds[:6]))
        except RankLost:
            pass  # they have noticed
        finally:
            self._over = True

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """What fails inside on one rank fails on all."""
        try:
            yield
        except Exception as error:
            self.tell(error)
            raise

    def wish(self, what: str) -> None:
        """Asks for something that all ranks must do at the same moment, such as to stop."""
        self._wishes.add(what)

    def granted(self, what: str) -> bool:
        """Whether a rank wished for it when all last met; true once, on all ranks alike."""
        if self.count == 1:
            self._granted, self._wishes = self._granted | self._wishes, set()
        was = what in self._granted
        self._granted.discard(what)
        return was

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks, the same bits on all; to be called right after they have met."""
        if self.count == 1:
            return value
        total = value.detach().clone().to(self._device or value.device)
        with self.connected("adding up"):
            dist.all_reduce(total)
        return total.to(value.device)

    def from_first(self, at: str, make: Callable[[], Made]) -> Made:
        """What rank 0 makes, on all ranks; what fails there fails on all."""
        made: list[Any] = [make() if self.first else None]
        if self.count > 1:
            self.meet(at)
            with self.connected(at):
                dist.broadcast_object_list(made, src=0, group=self._words)
        result: Made = made[0]
        return result

    def gathered(self, at: str, own: Made) -> list[Made]:
        """What each rank has, by rank."""
        found = [own] * self.count
        if self.count > 1:
            self.meet(at)
            with self.connected(at):
                dist.all_gather_object(found, own, group=self._words)
        return found

    @torch.no_grad()
    def take_from_first(self, at: str, tensors: Iterable[Tensor]) -> None:
        """Gives tensors the values that they have on rank 0."""
        if self.count == 1:
            return
        self.meet(at)
        for tensor in tensors:
            moved = tensor.detach().to(self._device or tensor.device).contiguous()
            with self.connected(at):
                dist.broadcast(moved, src=0)
            tensor.copy_(moved)

    def require_same(self, what: str, value: str, advice: str) -> None:
        """Refuses to go on if a value is not the same on all ranks, and says what to do."""
        found = self.meet(what, value)
        if len(set(found)) > 1:
            self._over = True
            raise RanksDisagree(
                f"{what} is not the same on all processes: {dict(enumerate(found))}. {advice} "
                f"{_AGAIN}"
            )

    def _exchanged(self, own: _Word) -> list[_Word]:
        if self._over:
            raise RankLost(f"The run has failed on these processes before. {_AGAIN}")
        words = [torch.zeros(_SIZE, dtype=torch.uint8) for _ in range(self.count)]
        with self.connected(own.at):
            dist.all_gather(words, own.packed(), group=self._words)
        return [_Word.unpacked(word) for word in words]

    @contextmanager
    def connected(self, at: str) -> Iterator[None]:
        """Turns the backend's errors about a lost rank into ``RankLost``."""
        try:
            yield
        except RuntimeError as error:  # whatever the backend calls it
            self._over = True
            reason = str(error).strip().splitlines()[-1][:200]
            raise RankLost(
                f"Rank {self.rank} of {self.count} has lost the others, at {at}: a process has "
                f"ended or does not answer ({reason}). {_AGAIN}"
            ) from error


@dataclass(frozen=True)
class _Word:
    """What a rank says when it meets the others."""

    at: str
    mark: str = ""
    wishes: list[str] = field(default_factory=list)
    error: str = ""
    kinds: list[str] = field(default_factory=list)

    def packed(self) -> Tensor:
        data = json.dumps(asdict(self)).encode()
        if len(data) > _SIZE:  # an error in letters that take many bytes
            short = {**asdict(self), "error": ascii(self.error)[: _TEXT // 4]}
            data = json.dumps(short).encode()
        return torch.frombuffer(bytearray(data.ljust(_SIZE)), dtype=torch.uint8)

    @classmethod
    def unpacked(cls, word: Tensor) -> _Word:
        return cls(**json.loads(word.numpy().tobytes()))

    def failure(self, rank: int) -> RuntimeError:
        """The error as it is raised on the other ranks."""
        kind = next((_KINDS[name] for name in self.kinds if name in _KINDS), RankFailed)
        return kind(f"Rank {rank} failed, and the run ends on all: {self.error.rstrip('.')}.")


def shared_by(processes: Sequence[int], *, seeded: bool) -> str:
    """What the statement says of the processes that made a run.

    Args:
        processes: How many there were, in one session or another, ascending.
        seeded: Whether the noise follows from a seed.
    """
    if processes[-1] == 1:
        return ""
    fewest, counts = processes[0], " or ".join(map(str, processes))
    made = (
        f" The run was made by {counts} processes together, each of which added its own share of "
        "the noise, an equal part of the variance. "
    )
    if seeded:
        return made + "All of them have the seed, and so could compute all of it."
    if fewest == 1:
        return made + "While there was only one, it knew all of the noise."
    return made + (
        f"None of them knows all of it: a process that is itself curious faces {fewest - 1}/"
        f"{fewest} of the variance in the sums that it is given (and 1/{fewest} in another's part, "
        "should it read the messages between them), and it knows who is in a batch, so that "
        "sampling does not help against it. The epsilon stated is for everybody else."
    )
