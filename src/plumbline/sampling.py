"""Which records enter a step, and in which physical chunks they are processed.

`PoissonSampler` is the private one: record i takes part in step t if a 64-bit word of its own is
below a threshold. The word's first 16 bits are the i-th of the stream `("sampling", t)` of its
source; they decide but for one record in 65,536, whose other 48 bits are those of the stream
`("sampling", t, i)`. So every record has its own independent draw, keyed by (key, step, record id):
neither the chunking nor the number of processes changes who takes part.

With `Parts` it is cyclic Poisson sampling: each record draws one part by itself, once for the whole
run, and step t takes only records of part t mod b. Between two steps that a record takes part in
there are then at least b - 1 others, which noise that is correlated over b steps needs.

Guarantee. The inclusion probability is `floor(rate * 2^64) / 2^64`, never above the accounted rate
(and below it by less than 2^-64). `event()` is the sampling that is implemented, and a run whose
plan accounts for another one does not start; a sampler without a private event returns None, so
nothing can be accounted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.mechanism.random_source import RandomSource
from plumbline.mechanism.release import CyclicSampling, PoissonSampling

__all__ = [
    "FixedSampler",
    "Parts",
    "PoissonSampler",
    "UserSampler",
    "Users",
    "chunks",
    "group_by_user",
]


@dataclass(frozen=True)
class Parts:
    """A part for each record, drawn by itself from its own number and nothing else.

    A shuffle would not do: one record more would move others to another part.

    Attributes:
        count: how many parts there are, b.
        source: what they are drawn from: the same in all sessions of a run.
    """

    count: int
    source: RandomSource

    def of(self, records: int) -> NDArray[np.uint64]:
        """The part of each record, `[records]`; how even they are does not matter to privacy."""
        return self.source.stream("parts").uint64(records) % np.uint64(self.count)


class PoissonSampler:
    """Draws every record independently with probability `rate` in each step.

    Args:
        records: the number of records (users, if a user is the unit); public.
        rate: the sampling rate, in (0, 1].
        source: the source of randomness. A secure source is never stored: a resumed run continues
            at the stored position under a new key.
        parts: of which each step samples one, in turn; `rate` is then that within the part.

    Attributes:
        step: the position: the next step.
    """

    def __init__(
        self, records: int, rate: float, source: RandomSource, parts: Parts | None = None
    ) -> None:
        _check_count("records", records)
        if isinstance(rate, bool) or not 0 < rate <= 1:
            raise ValueError(
                f"rate is {rate}, but a sampling rate is in (0, 1]; for an expected batch of L "
                "records it is L / records"
            )
        self.records = records
        self.rate = float(rate)
        self.step = 0
        self.parts = 1 if parts is None else parts.count
        self._part = None if parts is None else parts.of(records)
        self._source = source
        self._threshold = int(Fraction(self.rate) * 2**64)  # exact, rounded down
        if self._threshold == 0:
            raise ValueError(f"rate is {rate}, below 2^-64: no record would ever take part")

    def indices(self, step: int) -> torch.Tensor:
        """Returns the records of `step`, sorted, `[|S|]` int64; possibly none."""
        if step < 0:
            raise ValueError(f"step is {step}; steps are counted from 0")
        members = self._drawn(step)
        if self._part is not None:
            members = members[self._part[members] == step % self.parts]
        return torch.from_numpy(members)

    def _drawn(self, step: int) -> NDArray[np.int64]:
        """The records that are drawn, of whatever part."""
        if self._threshold == 2**64:
            return np.arange(self.records, dtype=np.int64)
        first, rest = divmod(self._threshold, 1 << 48)
        stream = self._source.stream("sampling", step)
        words = np.frombuffer(stream.bytes(2 * self.records), dtype="<u2")
        members = np.flatnonzero(words <= first)
        undecided = members[words[members] == first]
        out = [i for i in undecided.tolist() if self._rest(step, i) >= rest]
        if out:
            members = np.setdiff1d(members, out, assume_unique=True)
        return members.astype(np.int64, copy=False)

    def _rest(self, step: int, record: int) -> int:
        """The last 48 bits of a record's word."""
        return int.from_bytes(self._source.stream("sampling", step, record).bytes(6), "little")

    def event(self) -> PoissonSampling | CyclicSampling:
        """Returns the sampling that the steps of this sampler implement."""
        if self._part is None:
            return PoissonSampling(rate=self.rate)
        return CyclicSampling(rate=self.rate, parts=self.parts)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and what it is a position in; never a key."""
        state = {"kind": "poisson", "step": self.step, "records": self.records, "rate": self.rate}
        return state if self._part is None else {**state, "parts": self.parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a stored position; refuses one of another sampler and names the difference."""
        _check_same(self.state_dict(), state)
        self.step = int(state["step"])


class FixedSampler:
    """Shuffled epochs of batches of one size, for runs without privacy.

    Its batches reveal who is in them (each record once per epoch), which Poisson accounting does
    not cover, so `event()` is None.

    Args:
        records: the number of records.
        batch_size: the size of a batch; the last one of an epoch may be smaller.
        source: the source of randomness.
        domain: the purpose of the source's streams; two samplers of one source need different ones.
    """

    def __init__(
        self, records: int, batch_size: int, source: RandomSource, domain: str = "shuffle"
    ) -> None:
        _check_count("records", records)
        _check_count("batch_size", batch_size)
        self.records = records
        self.batch_size = batch_size
        self._source = source
        self._domain = domain
        self._order: tuple[int, torch.Tensor] | None = None  # the last shuffled epoch

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return -(-self.records // self.batch_size)

    def indices(self, step: int) -> torch.Tensor:
        """Returns the records of `step`, in shuffled order, `[batch_size]` int64."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            words = self._source.stream(self._domain, epoch).uint64(self.records)
            self._order = epoch, torch.from_numpy(np.argsort(words, kind="stable"))
        return self._order[1][batch * self.batch_size : (batch + 1) * self.batch_size]

    def event(self) -> None:
        """Returns None: this sampler supports no privacy claim."""
        return None


@dataclass(frozen=True, eq=False)
class Users:
    """Which records belong to which user, as compressed rows.

    Attributes:
        count: the number of users; users are numbered in the sorted order of their ids.
        offsets: user u has the records `members[offsets[u]:offsets[u + 1]]`; `[count + 1]` int64.
        members: all record indices, sorted by user and then by index; `[records]` int64.
    """

    count: int
    offsets: torch.Tensor
    members: torch.Tensor

    def records_of(self, users: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the records of the given users and, for each, its user's position in `users`.

        Args:
            users: user numbers, `[U]` int64.

        Returns:
            Record indices `[R]`, user by user, and the group of each `[R]`, in 0 to U - 1, for
            pooling each user's gradients.
        """
        first = self.offsets[users]
        sizes = self.offsets[users + 1] - first
        group = torch.repeat_interleave(torch.arange(len(users)), sizes)
        before = sizes.cumsum(0) - sizes  # records of the users ahead in the batch
        place = torch.arange(len(group)) - before[group] + first[group]
        return self.members[place], group


def group_by_user(user_ids: Sequence[Any] | NDArray[Any] | torch.Tensor) -> Users:
    """Groups records by the user they belong to.

    Args:
        user_ids: the user of each record: integers or strings, `[records]`.
    """
    ids = np.asarray(user_ids)
    if ids.ndim != 1 or len(ids) == 0 or ids.dtype.kind not in "iuUS":
        raise ValueError(
            f"user_ids has shape {ids.shape} and type {ids.dtype}; give one integer or string for "
            "each record"
        )
    _, user, sizes = np.unique(ids, return_inverse=True, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    members = np.argsort(user, kind="stable").astype(np.int64, copy=False)
    return Users(len(sizes), torch.from_numpy(offsets), torch.from_numpy(members))


class UserSampler(PoissonSampler):
    """Poisson-samples users: a user takes part with all of their records, or with none.

    `indices` and `event` are about users (numbered as in `users`); `records_of` turns a
    batch of users into the records to load.

    Args:
        user_ids: the user of each record, `[records]`; the number of users is treated as public.
        rate: the probability that a user takes part in a step.
        source: the source of randomness.
        parts: of the users, as of `PoissonSampler`.
    """

    def __init__(
        self,
        user_ids: Sequence[Any] | NDArray[Any] | torch.Tensor,
        rate: float,
        source: RandomSource,
        parts: Parts | None = None,
    ) -> None:
        self.users = group_by_user(user_ids)
        super().__init__(self.users.count, rate, source, parts)

    def records_of(self, users: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the records `[R]` of a batch of users, and each one's user in the batch `[R]`."""
        return self.users.records_of(users)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and what it is a position in; never a key."""
        return {**super().state_dict(), "kind": "poisson_users"}


def chunks(
    indices: torch.Tensor, max_physical_batch: int | None, groups: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Cuts a logical batch into physical chunks, in order; an empty batch has no chunks.

    Args:
        indices: the batch, `[R]`.
        max_physical_batch: the most records in a chunk; None means one chunk.
        groups: the group of each record, `[R]`, equal ones adjacent (as `Users.records_of` returns
            them). Then no group is split, since pooling needs it whole: a group larger than
            `max_physical_batch` gets a chunk of its own, above the limit.
    """
    if len(indices) == 0:
        return []
    if max_physical_batch is None:
        return [indices]
    _check_count("max_physical_batch", max_physical_batch)
    if groups is None:
        return list(torch.split(indices, max_physical_batch))
    sizes = torch.unique_consecutive(groups, return_counts=True)[1].tolist()
    lengths = [0]
    for size in sizes:
        if lengths[-1] and lengths[-1] + size > max_physical_batch:
            lengths.append(0)
        lengths[-1] += size
    return list(torch.split(indices, lengths))


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be an integer, at least 1")


def _check_same(own: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    differences = [
        f"{key} is {own.get(key)!r} here and {stored.get(key)!r} in the stored state"
        for key in sorted(own.keys() | stored.keys())
        if key != "step" and own.get(key) != stored.get(key)
    ]
    if differences:
        raise ValueError(
            "the stored position belongs to another sampler: "
            + "; ".join(differences)
            + ". Resume with the settings and the data set of the stored run"
        )
