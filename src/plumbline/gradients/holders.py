"""A fast comparison of everything that many containers hold: the very same objects, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
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
        states: Functions whose values are compared: the state of a generator, a checksum.
        watchful: Whether there is something that cannot be compared so: nothing is certain then.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.states: list[Callable[[], Any]] = []
        self.watchful = False
        self._all: list[Any] = []
        self._looked_into: list[Any] = []
        self._lengths: list[int] = []
        self._before: list[Any] = []
        self._marks: list[Any] = []
        self._states: list[Any] = []

    @classmethod
    def of(cls, parts: Iterable[Holders]) -> Holders:
        """All that these have, as it is now."""
        whole = cls()
        for part in parts:
            whole.tensors += part.tensors
            whole.states += part.states
            whole.watchful |= part.watchful
            whole._all += part._all
            whole._looked_into += part._looked_into
        whole.remember()
        return whole

    def add(self, holder: Any, most: int | None = None) -> None:
        """Adds a dict, a list ...; by a sample of them if it has more than ``most`` items."""
        self._all.append(holder)
        if most is None or len(holder) <= most:
            self._looked_into.append(holder)
            if isinstance(holder, Mapping):
                self._looked_into.append(holder.values())
        else:
            self._looked_into.append(SomeItems(holder))

    def remember(self) -> None:
        """Remembers what everything holds now."""
        self._lengths = list(map(len, self._all))
        self._before = list(chain.from_iterable(self._looked_into))
        self._marks = self._tensor_marks()
        self._states = [state() for state in self.states]

    def untouched(self) -> bool:
        """Whether everything certainly holds the very objects that it held."""
        return (
            not self.watchful
            and list(map(len, self._all)) == self._lengths
            and all(map(is_, chain.from_iterable(self._looked_into), self._before))
            and self._tensor_marks() == self._marks
            and [state() for state in self.states] == self._states
        )

    def _tensor_marks(self) -> list[Any]:
        try:
            return [*map(_VERSION, self.tensors), *map(_ADDRESS, self.tensors)]
        except RuntimeError:  # an inference tensor has no version
            return list(map(mark_of, self.tensors))


class SomeItems:
    """About a thousand items of a large container, whenever it is iterated over.

    The first and the last ones, and of lists and tuples also some from everywhere.
    """

    def __init__(self, holder: Any) -> None:
        self._holder = holder

    def __iter__(self) -> Iterator[Any]:
        inside = self._holder
        if isinstance(inside, list | tuple):
            return chain(inside[:300], inside[:: max(1, len(inside) // 400)], inside[-300:])
        if isinstance(inside, Mapping):
            inside = inside.values()
        ends = reversed(inside) if hasattr(inside, "__reversed__") else ()
        return chain(islice(inside, 500), islice(ends, 500))


def mark_of(tensor: Tensor) -> Mark:
    """What a tensor is recognised by."""
    version = -1 if tensor.is_inference() else tensor._version
    try:
        place = tensor.data_ptr()
    except RuntimeError:  # one that has no memory of its own, such as a shard's
        place = 0
    return id(tensor), version, place
