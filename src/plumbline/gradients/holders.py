"""A fast comparison of everything that many containers hold: the very same objects, or not."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any

from torch import Tensor

Mark = tuple[int, int, int]
"""What a tensor is recognised by: its identity, its version and its place in memory."""

_VERSION, _ADDRESS = attrgetter("_version"), methodcaller("data_ptr")


class Holders:
    """Containers and tensors, with what they held when ``remember`` was called.

    Attributes:
        tensors: Those whose versions and places in memory are compared.
        watchful: Whether there is something that cannot be compared so: nothing is certain then.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.watchful = False
        self._all: list[Any] = []
        self._looked_into: list[Any] = []
        self._lengths: list[int] = []
        self._before: list[Any] = []
        self._marks: list[Any] = []

    def add(self, holder: Any, most: int | None = None) -> None:
        """Adds a dict, a list ...; only by its length if it has more than ``most`` items."""
        self._all.append(holder)
        if most is None or len(holder) <= most:
            self._looked_into.append(holder)
            if isinstance(holder, Mapping):
                self._looked_into.append(holder.values())

    def remember(self) -> None:
        """Remembers what everything holds now."""
        self._lengths = list(map(len, self._all))
        self._before = list(chain.from_iterable(self._looked_into))
        self._marks = self._tensor_marks()

    def untouched(self) -> bool:
        """Whether everything certainly holds the very objects that it held."""
        return (
            not self.watchful
            and list(map(len, self._all)) == self._lengths
            and all(map(is_, chain.from_iterable(self._looked_into), self._before))
            and self._tensor_marks() == self._marks
        )

    def _tensor_marks(self) -> list[Any]:
        try:
            return [*map(_VERSION, self.tensors), *map(_ADDRESS, self.tensors)]
        except RuntimeError:  # an inference tensor has no version
            return list(map(mark_of, self.tensors))


def mark_of(tensor: Tensor) -> Mark:
    """What a tensor is recognised by."""
    version = -1 if tensor.is_inference() else tensor._version
    try:
        place = tensor.data_ptr()
    except RuntimeError:  # one that has no memory of its own, such as a shard's
        place = 0
    return id(tensor), version, place
