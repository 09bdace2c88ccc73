"""Measurements along a run: a callback that looks every few steps at records held aside.

``private.fit([Probe(records, every=50)])``, or ``probe.after_step(private, info)`` in one's own
loop. Looking leaves no trace: random numbers, weights and modes are as if nobody had looked. What
it records reads raw gradients of the records held aside: not covered by epsilon, and marked so in
the file it writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from plumbline.checks import check_count
from plumbline.clipping import Clipping
from plumbline.diagnostics.ascent import ascent_directions
from plumbline.diagnostics.base import NOT_COVERED, Sample, cosine
from plumbline.diagnostics.bias import bias, error_parts, penalty_bound
from plumbline.diagnostics.norms import norms
from plumbline.diagnostics.sampling_noise import sampling_noise
from plumbline.diagnostics.symmetry import symmetry
from plumbline.results import Number, to_json


class Method(Protocol):
    """What a probe needs of a run's method."""

    clipping: Clipping


class Plan(Protocol):
    """What a probe needs of a run's plan."""

    noise_multiplier: float
    expected_batch_size: int


class Run(Protocol):
    """What a probe needs of a run; ``plumbline.Private`` is one."""

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    method: Any
    plan: Any
    released: Mapping[str, Tensor] | None


class Info(Protocol):
    """What a probe needs to know of a step."""

    step: int
    epsilon: float


Measurement = Callable[[Sample, Mapping[str, Tensor] | None], Any]

MEASUREMENTS: dict[str, Measurement] = {
    "bias": lambda sample, released: bias(sample),
    "errors": lambda sample, released: error_parts(sample),
    "penalty": lambda sample, released: penalty_bound(sample),
    "norms": lambda sample, released: norms(sample),
    "sampling_noise": lambda sample, released: sampling_noise(sample),
    "symmetry": lambda sample, released: symmetry(sample),
    "ascent": ascent_directions,
}
"""What can be recorded, by name."""


@dataclass(frozen=True)
class Reading:
    """What was measured after a step.

    Attributes:
        step: How many steps were done.
        epsilon: Spent until then; what was measured is not covered by it.
        results: By name of the measurement.
        successive_cosine: Of this step's released gradient and the one at the previous reading.
    """

    step: int
    epsilon: float
    results: dict[str, Any]
    successive_cosine: Number | None


@dataclass
class Probe:
    """Records chosen diagnostics every few steps.

    Attributes:
        records: A batch to measure on, in the form that the run's loss sees. Hold it aside.
        every: How many steps lie between readings.
        measure: Names of ``MEASUREMENTS``.
        sensitive_features: The records' groups, ``[B]``, if there are groups.
        readings: What was recorded so far.
    """

    records: Any
    every: int = 50
    measure: Sequence[str] = ("bias", "errors", "norms", "sampling_noise", "symmetry", "ascent")
    sensitive_features: Tensor | None = None
    readings: list[Reading] = field(default_factory=list)
    _previous: Mapping[str, Tensor] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("every", self.every)
        unknown = [name for name in self.measure if name not in MEASUREMENTS]
        if unknown:
            raise ValueError(
                f"There is no measurement {unknown[0]!r}; there are {', '.join(MEASUREMENTS)}."
            )

    def after_step(self, private: Run, info: Info) -> None:
        """Takes a reading where one is due."""
        if info.step % self.every == 0:
            self.read(private, info)

    def read(self, private: Run, info: Info) -> Reading:
        """Takes a reading now."""
        state = torch.get_rng_state()
        try:
            sample = Sample.take(
                private.model,
                lambda: private.loss(private.model, self.records),
                private.method.clipping,
                noise_multiplier=private.plan.noise_multiplier,
                expected_size=private.plan.expected_batch_size,
                groups=self.sensitive_features,
            )
            results = {name: MEASUREMENTS[name](sample, private.released) for name in self.measure}
        finally:
            torch.set_rng_state(state)
        successive = None
        if self._previous and private.released:
            successive = cosine(private.released, self._previous)
        self._previous = private.released
        reading = Reading(info.step, info.epsilon, results, successive)
        self.readings.append(reading)
        return reading

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the readings as JSON lines, the first of which says that epsilon covers none."""
        lines = [{"label": NOT_COVERED}, *(to_json(reading) for reading in self.readings)]
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        Path(path).write_text(text, encoding="utf-8")
