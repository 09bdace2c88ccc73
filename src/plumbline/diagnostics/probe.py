"""Measurements along a run: a callback that looks every few steps at some training records.

``private.fit([Probe(every=50)])``, or ``probe.after_step(private, info)`` in one's own loop. What
is measured is what the run clips: gradients go through its method (``through_method.py``). Looking
leaves no trace: random numbers, weights and modes are as if nobody had looked. What it records
reads raw gradients of training records: not covered by epsilon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plumbline.checks import check_count
from plumbline.diagnostics import named  # noqa: F401  (registers the diagnostics)
from plumbline.diagnostics.base import Sample
from plumbline.diagnostics.look import Diagnostic, Function, Look, When, found
from plumbline.results import to_json
from plumbline.training import Private
from plumbline.training.fitting import StepInfo
from plumbline.without_trace import evaluating, no_trace

USUAL = ("bias", "errors", "norms", "symmetry")
AT_END = 256
"""The most records that are measured on at the end, where a measurement takes many passes."""


@dataclass(frozen=True)
class Reading:
    """What was measured after a step.

    Attributes:
        step: How many steps were done.
        epsilon: Spent until then; what was measured is not covered by it.
        records: How many records (or users) it was measured on.
        results: By name of the diagnostic.
        when: "end" for what is measured once, after the last step.
    """

    step: int
    epsilon: float
    records: int
    results: dict[str, Any]
    when: When = "along"

    def to_json(self) -> dict[str, Any]:
        """One row: the results beside the step."""
        facts = {"step": self.step, "epsilon": to_json(self.epsilon), "records": self.records}
        return {**facts, **to_json(self.results)}


@dataclass
class Probe:
    """Records chosen diagnostics every few steps, and some once at the end.

    Attributes:
        every: How many steps lie between readings; there is one after the last step too.
        records: How many training records (or users) are measured on, or which, ``[B]``.
        measure: What: names of ``DIAGNOSTICS``, ``"package.module:function"``, or functions of a
            ``Look``.
        group_names: The groups' names, by value of the run's ``sensitive_features``.
        seed: Chooses the records, and random vectors of some diagnostics.
        on_reading: Called with each reading.
        start: The run's first weights, for diagnostics that need them; by default those that the
            probe finds before the first step, if it is there.
        readings: What was recorded so far.
    """

    every: int = 50
    records: int | Tensor = 256
    measure: Sequence[str | Function] = USUAL
    group_names: Mapping[int, str] = field(default_factory=dict)
    seed: int = 0
    on_reading: Callable[[Reading], object] | None = None
    start: Mapping[str, Tensor] | None = None
    readings: list[Reading] = field(default_factory=list)
    _before: deque[Sample] = field(init=False, repr=False)
    _released: tuple[Any, Any] = field(default=(None, None), init=False, repr=False)
    _units: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("every", self.every)
        if isinstance(self.records, int):
            check_count("records", self.records)
        self._diagnostics = chosen(self.measure)
        self._window = max((one.steps_before for one in self._diagnostics.values()), default=0)
        self._before = deque(maxlen=self._window)

    @property
    def needs_start(self) -> bool:
        """Whether a diagnostic needs the run's first weights."""
        return any(one.needs_start for one in self._diagnostics.values())

    def begin(self, private: Private) -> None:
        """Keeps the run's first weights, if they are needed: call it before the first step."""
        if self.needs_start and self.start is None and private.steps_done == 0:
            self.start = {name: p.detach().clone() for name, p in private.parameters().items()}

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Takes a reading where one is due: every few steps, and after the last."""
        self._released = private.released, self._released[0]
        due = min(-info.step % self.every, info.steps - info.step)
        if due > self._window:
            return
        look = self._look(private)
        if due == 0:
            self._read(look, info, "along")
        if self._window:
            self._before.append(look.sample)
        if info.step == info.steps:
            with evaluating(private.model):
                self._read(self._look(private, AT_END), info, "end")

    def _read(self, look: Look, info: StepInfo, when: When) -> None:
        wanted = {name: one for name, one in self._diagnostics.items() if one.when == when}
        if not wanted:
            return
        with no_trace(look.private.model):
            results = {name: one(look) for name, one in wanted.items()}
        reading = Reading(info.step, info.epsilon, len(look.units), results, when)
        self.readings.append(reading)
        if self.on_reading is not None:
            self.on_reading(reading)

    def _look(self, private: Private, most: int | None = None) -> Look:
        if self._units is None:
            self._units = units_of(private, self.records, self.seed)
        return Look(
            private,
            self._units[:most],
            self.group_names,
            self.seed,
            self._released,
            tuple(self._before),
            self.start,
        )


def chosen(measure: Sequence[str | Function]) -> dict[str, Diagnostic]:
    """The diagnostics by name.

    Raises:
        UnknownPart: If there is none of a name.
        ValueError: If two have one name.
    """
    pairs = [found(one) for one in measure]
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the diagnostic {twice!r} is to be measured twice; give each once")
    return dict(pairs)


def units_of(private: Private, records: int | Tensor, seed: int) -> Tensor:
    """The numbers of the records (or users) to measure on, ``[B]``, ascending."""
    if isinstance(records, Tensor):
        return records.cpu()
    order = torch.randperm(private.units, generator=torch.Generator().manual_seed(seed))
    return order[:records].sort().values
