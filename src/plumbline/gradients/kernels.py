"""Which kernel computes a layer's per-record gradients: measured once per shape, then remembered.

One layer's per-record gradients can be computed in several ways, and which is fastest depends on
the layer's shape and on the machine. ``Kernels.run`` times the candidates on the first batch of a
shape (like cuDNN's benchmark mode), keeps the fastest and uses it from then on. After ``pin``, each
shape's first candidate is taken, so that two runs add their numbers in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

Key = tuple[object, ...]
Result = TypeVar("Result")

_ROUNDS = 4
_CLEARLY = 1.05


def bucket(records: int) -> int:
    """The power of two at or above ``records``: Poisson batches share a measured choice."""
    return _AS_IF or 1 << max(records - 1, 0).bit_length()


@contextmanager
def as_if(records: int) -> Iterator[None]:
    """Inside, kernels are chosen as if batches had so many records."""
    global _AS_IF
    _AS_IF = bucket(records)
    try:
        yield
    finally:
        _AS_IF = 0


_AS_IF = 0


@dataclass
class Kernels:
    """The choice of a kernel for each layer shape, measured or given.

    Attributes:
        measure: Whether to time the candidates of a shape without a choice. If False, the first
            candidate is taken, so that the choice is the same on every machine.
        timings: Seconds of every candidate measured so far, by shape.
        asked: How often there was a choice.
    """

    measure: bool = True
    timings: dict[Key, dict[str, float]] = field(default_factory=dict)
    _chosen: dict[Key, str] = field(default_factory=dict)
    _preferred: str = ""
    asked: int = 0

    def run(
        self,
        key: Key,
        candidates: Mapping[str, Callable[[], Result]],
        finish: Callable[[Result], object] | None = None,
    ) -> Result:
        """The result of the candidate chosen for ``key``, measuring first if there is none yet.

        ``finish`` is what happens with the result later; its time counts in the measurement.
        """
        self.asked += len(candidates) > 1
        name = self._chosen.get(key) or self._preferred
        if name not in candidates:
            if self.measure and len(candidates) > 1:
                return self._fastest(key, candidates, finish)
            name = next(iter(candidates))
        self._chosen[key] = name
        return candidates[name]()

    def pin(self) -> None:
        """Takes each shape's first candidate from now on, and measures nothing."""
        self.measure = False
        self._chosen = {}

    def forget(self) -> None:
        """Drops every choice and timing, and measures again."""
        self.measure = True
        self._chosen = {}
        self.timings = {}

    @contextmanager
    def unmeasured(self, preferred: str | None = None) -> Iterator[None]:
        """Measures nothing in this context, and leaves the choices as they were.

        Layers that offer the kernel ``preferred`` use it, the others their first candidate.
        """
        before = self.measure, self._chosen, self._preferred
        self.measure, self._chosen, self._preferred = False, {}, preferred or ""
        try:
            yield
        finally:
            self.measure, self._chosen, self._preferred = before

    def chosen(self, key: Key) -> str | None:
        """The name of the candidate in use for ``key``."""
        return self._chosen.get(key)

    def _fastest(
        self,
        key: Key,
        candidates: Mapping[str, Callable[[], Result]],
        finish: Callable[[Result], object] | None,
    ) -> Result:
        def whole(candidate: Callable[[], Result]) -> None:
            result = candidate()
            if finish is not None:
                finish(result)

        seconds = dict.fromkeys(candidates, float("inf"))
        for candidate in candidates.values():
            whole(candidate)  # warm-up: exclude the first touches of memory
        for _ in range(_ROUNDS):  # interleaved, so that a busy machine disturbs all alike
            for name, candidate in candidates.items():
                seconds[name] = min(seconds[name], _seconds(partial(whole, candidate)))
        name = min(seconds, key=lambda candidate: seconds[candidate])
        usual = next(iter(candidates))
        if seconds[usual] <= _CLEARLY * seconds[name]:
            name = usual  # the layer's own first choice, unless another is clearly faster
        self.timings[key] = seconds
        self._chosen[key] = name
        return candidates[name]()


def _seconds(candidate: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    candidate()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


KERNELS = Kernels()
"""The choices of this process: each shape is measured once."""
