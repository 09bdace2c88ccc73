"""Random numbers that belong to a record: for its views, buckets, gradient perturbations.

A record's draws depend on a key and on the record's own number, not on its position in a batch. So
they are the same in every pass of a step and for any chunking of the batch, and adding or removing
a record does not change the draws of the others; the sensitivity of everything computed from them
relies on this. They are not the noise that makes a release private: ``mechanism`` draws that, from
a cryptographic source.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class Draws:
    """A stream of random numbers for each row, counter-based (SplitMix64) and vectorised.

    Args:
        numbers: Identify the rows, ``[R]`` int64: equal numbers get equal draws.
        key: Everything else that the draws depend on (the run's seed, the step, the purpose).
    """

    def __init__(self, numbers: Tensor, key: str) -> None:
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)
        self._streams = _mixed(_mixed(numbers.to(torch.int64)) ^ start)
        self._drawn = 0

    def __len__(self) -> int:
        return len(self._streams)

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
        copy = Draws.__new__(Draws)
        number = torch.arange(times, device=self._streams.device)
        copy._streams = _mixed(self._streams[:, None] ^ _mixed(number)).flatten()
        copy._drawn = 0
        return copy

    def of_rows(self, row: Tensor) -> Draws:
        """Streams for copies of the rows, ``[len(row)]``: each copy of a row has its own.

        Args:
            row: Which row each copy is of, ascending.
        """
        copy = Draws.__new__(Draws)
        first = torch.searchsorted(row, torch.arange(len(self), device=row.device))
        number = torch.arange(len(row), device=row.device) - first[row]
        copy._streams = _mixed(self._streams[row] ^ _mixed(number))
        copy._drawn = 0
        return copy

    def fresh(self) -> Draws:
        """The same streams, from their beginning."""
        return self.select(torch.arange(len(self)))

    def select(self, index: Tensor) -> Draws:
        """The streams of some rows, from their beginning."""
        copy = Draws.__new__(Draws)
        copy._streams = self._streams[index]
        copy._drawn = 0
        return copy

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        count = torch.Size(shape).numel()
        counter = torch.arange(1, count + 1, device=self._streams.device) + self._drawn
        self._drawn += count
        return _mixed(self._streams[:, None] + counter * _signed(_GOLDEN)).view(len(self), *shape)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of torch, numpy and Python start at ``seed``, and are put back."""
    before = torch.default_generator.get_state(), numpy.random.get_state(), random.getstate()  # noqa: NPY002
    # Not torch.manual_seed, which also formats stack traces for devices that are not there.
    torch.default_generator.manual_seed(seed)
    numpy.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        numpy.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _mixed(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser; int64 products wrap, as it needs."""
    bits = bits + _signed(_GOLDEN)
    for shift, factor in _MIX:
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * _signed(factor)
    return bits ^ (bits >> 31 & (1 << 33) - 1)
