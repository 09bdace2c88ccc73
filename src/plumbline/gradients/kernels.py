"""Which kernel computes a layer's per-record gradients: measured once per shape, then remembered.

Per-record gradients of one layer can be had in several ways, and which is fastest depends on the
layer's shape and on the machine. ``Kernels.run`` times the candidates on the first batch of a shape
(as cuDNN's benchmark mode does), keeps the fastest and uses it from then on. After ``pin``, each
shape's first candidate is taken, so that two runs add up their numbers in the same order.
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
    return 1 << max(records - 1, 0).bit_length()


@dataclass
class Kernels:
    """The measured (or given) choice of a kernel for each layer shape.

    Attributes:
        measure: Time the candidates of a shape that has no choice yet. When False the first
            candidate is taken, which makes the choice the same on every machine.
        timings: Seconds of every candidate measured so far, by shape.
    """

    measure: bool = True
    timings: dict[Key, dict[str, float]] = field(default_factory=dict)
    _chosen: dict[Key, str] = field(default_factory=dict)
    _preferred: str = ""

    def run(
        self,
        key: Key,
        candidates: Mapping[str, Callable[[], Result]],
        finish: Callable[[Result], object] | None = None,
    ) -> Result:
        """The result of the candidate chosen for ``key``, measuring first if there is none yet.

        ``finish`` is what will be done with the result later; its time counts in the measurement.
        """
        name = self._chosen.get(key) or self._preferred
        if name not in candidates:
            if self.measure and len(candidates) > 1:
                return self._fastest(key, candidates, finish)
            name = next(iter(candidates))
        self._chosen[key] = name
        return candidates[name]()

    def pin(self) -> None:
        """Take each shape's first candidate from now on, and measure nothing."""
        self.measure = False
        self._chosen = {}

    def forget(self) -> None:
        """Drop every choice and timing, and measure again."""
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
            whole(candidate)  # warm-up: first touches of memory are not the kernel
        for _ in range(_ROUNDS):  # in turns, so that a busy machine disturbs them alike
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
"""The process's one table of choices: a shape is measured once, whoever asks."""
