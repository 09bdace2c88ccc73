"""Random numbers that belong to a record: for its views, buckets, gradient perturbations.

A record's draws depend on a key and on the record's own number, not on its position in a batch. So
they are the same in every pass of a step and for any chunking of the batch, and adding or removing
a record does not change the draws of the others; the sensitivity of everything computed from them
relies on this. They are not the noise that makes a release private: ``mechanism`` draws that, from
a cryptographic source.

Code that knows nothing of this draws from global generators: torch's, NumPy's (``np.random.*``) and
Python's ``random``. ``one_by_one`` sets them anew for every record, and leaves the user's own state
as it was. Generators of other devices are not set.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.random import bit_generator
from torch import Tensor

Row = TypeVar("Row")
Result = TypeVar("Result")

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class Draws:
    """A stream of random numbers for each row, counter-based (SplitMix64) and vectorised.

    Args:
        numbers: Identify the rows, ``[R]`` int64: equal numbers get equal draws.
        key: Everything else that the draws depend on (the run's seed, the step, the purpose); or a
            function that gives it, which is called when the first number is drawn.
    """

    def __init__(self, numbers: Tensor, key: str | Callable[[], str]) -> None:
        self._numbers = numbers
        self._key = key
        self._rows = len(numbers)
        self._drawn = 0

    @cached_property
    def _streams(self) -> Tensor:
        key = self._key if isinstance(self._key, str) else self._key()
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)
        return _mixed(_mixed(self._numbers.to(torch.int64)) ^ start)

    @classmethod
    def by_place(cls, rows: int) -> Draws:
        """Streams for rows that have no numbers: from torch's default generator and their place."""
        return cls(torch.arange(rows), f"by place {int(torch.randint(2**62, ()))}")

    def __len__(self) -> int:
        return self._rows

    def uniform(self, *shape: int) -> Tensor:
        """``[R, *shape]`` float32 in [0, 1)."""
        # A float32 holds 24 bits exactly.
        return (self._bits(shape) >> 40 & 0xFFFFFF).to(torch.float32) / 2**24

    def integers(self, high: int, *shape: int) -> Tensor:
        """``[R, *shape]`` int64 in [0, high), for ``high`` below 2^31."""
        if not 1 <= high < 2**31:
            raise ValueError(f"high is {high}; it must be at least 1 and below 2^31.")
        return (self._bits(shape) >> 32 & 0xFFFFFFFF) * high >> 32

    def seeds(self) -> Tensor:
        """``[R]`` int64, not negative: a seed for each row's own generator."""
        return self._bits(()) & 0x7FFFFFFFFFFFFFFF

    def repeat(self, times: int) -> Draws:
        """Streams for ``times`` copies of each row, ``[R * times]``, a row's copies adjacent."""
        number = torch.arange(times, device=self._streams.device)
        return self._with(_mixed(self._streams[:, None] ^ _mixed(number)).flatten())

    def of_rows(self, row: Tensor) -> Draws:
        """Streams for copies of the rows, ``[len(row)]``: each copy of a row has its own.

        Args:
            row: Which row each copy is of, ascending.
        """
        first = torch.searchsorted(row, torch.arange(len(self), device=row.device))
        number = torch.arange(len(row), device=row.device) - first[row]
        return self._with(_mixed(self._streams[row] ^ _mixed(number)))

    def fresh(self) -> Draws:
        """The same streams, from their beginning."""
        return self._with(self._streams)

    def select(self, index: Tensor) -> Draws:
        """The streams of some rows, from their beginning."""
        return self._with(self._streams[index])

    def rows(self, some: slice) -> Draws:
        """The streams of some of the rows, as far as they were drawn from."""
        copy = self._with(self._streams[some])
        copy._drawn = self._drawn
        return copy

    @staticmethod
    def _with(streams: Tensor) -> Draws:
        copy = Draws.__new__(Draws)
        copy._streams = streams
        copy._rows = len(streams)
        copy._drawn = 0
        return copy

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        count = torch.Size(shape).numel()
        counter = torch.arange(1, count + 1, device=self._streams.device) + self._drawn
        self._drawn += count
        return _mixed(self._streams[:, None] + counter * _signed(_GOLDEN)).view(len(self), *shape)


class OwnGenerators:
    """Runs code with global generators that are what belongs to a key, and puts them back.

    Generators that are made meanwhile without a seed (``np.random.default_rng()``,
    ``random.Random()``) start from them, instead of the system's entropy. Most code draws nothing:
    as long as it has not, generators are not set but only compared, which takes less time. Code
    that turns out to have drawn is run again with them set, so it must be safe to run twice.

    Attributes:
        used: Whether the code has drawn from them.
    """

    def __init__(self) -> None:
        self.used = False
        self._numpy = NumpyState()

    def run(self, compute: Callable[[], Result], key: Callable[[], str]) -> Result:
        """What ``compute`` gives; ``key`` is asked for where random numbers are drawn."""
        numpy = None if self.used else self._numpy.now()
        if numpy is not None:
            own, python = torch.default_generator.get_state(), random.getstate()
            try:
                with _without_entropy():
                    result = compute()
            finally:
                self.used = (
                    self._numpy.moved(numpy)
                    or random.getstate() != python
                    or not torch.equal(torch.default_generator.get_state(), own)
                )
                if self.used:
                    torch.default_generator.set_state(own)
                    random.setstate(python)
                    self._numpy.put_back(numpy)
            if not self.used:
                return result
        with own_generators(key()):
            return compute()


class NumpyState:
    """The state of NumPy's global generator, read from memory: asking for it takes longer.

    The memory does not hold the second of a pair of Gaussians, which NumPy keeps for the next call
    that wants one: so a state is read only while there is none.
    """

    def __init__(self) -> None:
        self._without_pair: bytes | None = None

    def now(self) -> bytes | None:
        """The state; None where a Gaussian is waiting, or the generator is not the usual one."""
        memory = self._memory()
        if memory is None or memory != self._without_pair:
            state: Any = np.random.get_state()  # noqa: NPY002
            self._without_pair = memory if state[3] == 0 else None
        return self._without_pair

    def moved(self, before: bytes) -> bool:
        """Whether something was drawn since."""
        return self._memory() != before

    def put_back(self, before: bytes) -> None:
        """Makes it what it was."""
        words = np.frombuffer(before, dtype=np.uint32)
        np.random.set_state(("MT19937", words[:-1], int(words[-1]), 0, 0.0))  # noqa: NPY002

    @staticmethod
    def _memory() -> bytes | None:
        generator: Any = np.random.mtrand.get_bit_generator()
        if type(generator) is not np.random.MT19937:
            return None
        return ctypes.string_at(generator.ctypes.state_address, _WORDS * 4)


@contextmanager
def own_generators(key: str, number: int = 0) -> Iterator[None]:
    """The global generators are what belongs to this key and record, and are put back."""
    with kept_generators(), _without_entropy():
        set_generators(key, number)
        yield


@contextmanager
def _without_entropy() -> Iterator[None]:
    """Generators that are made without a seed start from the global ones."""
    entropy, _NUMPY.randbits = _NUMPY.randbits, random.getrandbits
    seed, random.Random.seed = random.Random.seed, _seed  # type: ignore[method-assign]
    try:
        yield
    finally:
        _NUMPY.randbits = entropy
        random.Random.seed = seed  # type: ignore[method-assign]


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    """``random.Random.seed``, by the global generator instead of the system's entropy."""
    _SEED(self, random.getrandbits(64) if a is None else a, version)


_WORDS = 625  # of a Mersenne twister: its 624, and the place among them
_SEED = random.Random.seed
_NUMPY: Any = bit_generator


def one_by_one(read: Callable[[int], Row], numbers: Iterable[int], key: str) -> list[Row]:
    """Reads records one after the other, each with global generators of its own.

    Args:
        read: Reads the record with this number.
        numbers: The records' numbers.
        key: What the random numbers depend on beside the record's number: the run and the step. It
            is a plain string, so that a worker process can be given it.
    """
    with kept_generators():
        rows = []
        for number in numbers:
            set_generators(key, number)
            rows.append(read(number))
        return rows


def set_generators(key: str, number: int) -> None:
    """Sets the global generators to what belongs to this key and record."""
    named = f"record {number} {key}".encode()
    digest = hashlib.blake2b(named, digest_size=20).digest()
    # A hundred times cheaper than torch.manual_seed, which goes to every device.
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    random.seed(int.from_bytes(digest[8:16], "little"))
    np.random.seed(int.from_bytes(digest[16:], "little"))  # noqa: NPY002


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restores the global generators when the block ends, whatever happens in it."""
    own = torch.default_generator.get_state()
    python = random.getstate()
    numpy: Any = np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(own)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _mixed(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser; int64 products wrap, as it needs."""
    bits = bits + _signed(_GOLDEN)
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * _signed(factor)
    return bits ^ (bits >> 31 & (1 << 33) - 1)
