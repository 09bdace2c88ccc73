"""The programs of a run's captures: recorded once, run instead of the model's code, and compared.

A program (``recording.py``) is what the capture of this very model did, one record at a time under
``vmap``, with its Python taken away. It stays the model's own as long as the model does: it is
forgotten when something that the model's code can read has changed (``state_watch.py``), and at
random steps, as at its first ones, the model itself is run too and the two must agree. If they do
not, the model's result counts, the program is dropped for good, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from plumbline.gradients.model_parts import ModelParts, parts_of
from plumbline.gradients.recording import NotRecordable, Program, Recording, taken_apart

Result = TypeVar("Result")

_SETTLING = 2  # runs before the first recording: kernels are being chosen
_COMPARED = 3  # first runs of a program that are compared
_AGAIN = 1 / 64  # how often later ones are
_TRIES = 3  # of recording
_MOST_BYTES = 1 << 26  # that a recording may hold; a larger model's code costs little beside it
_MOST_KINDS = 64  # of inputs
_CLOSE = 1e-4


class StaleProgram(UserWarning):
    """A model that reads something which no one can watch has changed during a run."""


class Programs:
    """The programs of one run, each for one kind of input.

    Args:
        version: Gives another number whenever something that the model's code can read changes.
        coin: Uniform in [0, 1); decides when a program is compared, and should be secret.
    """

    def __init__(self, version: Callable[[], int], coin: Callable[[], float]) -> None:
        self._version, self._coin = version, coin
        self._at = version()
        self._parts: ModelParts | None = None  # new ones whenever they change
        self._known: dict[object, _Known] = {}

    def run(
        self, compute: Callable[[], Result], model: nn.Module, given: Any, records: int
    ) -> Result:
        """What ``compute`` gives, which depends on nothing but ``given`` and the model.

        Args:
            compute: Runs the model.
            model: The model.
            given: What it is run on: tensors with one row per record, in any nesting.
            records: How many records there are.
        """
        now, parts = self._version(), parts_of(model)
        if now != self._at or parts is not self._parts:
            self._at, self._parts, self._known = now, parts, {}
        try:
            form, tensors = taken_apart(given, records)
        except NotRecordable:
            return compute()
        key = form, tuple([(one.dtype, one.device, one.shape[1:]) for one in tensors])
        known = self._known.get(key)
        if known is None:
            if len(self._known) == _MOST_KINDS:  # of lengths that change from batch to batch, say
                return compute()
            known = self._known[key] = _Known()
        if known.program is not None and known.program.only in (None, records):
            return self._replayed(known, compute, tensors, records)
        if known.tries >= _TRIES or known.runs < _SETTLING:
            known.runs += 1
            return compute()
        return known.record(compute, tensors, records)

    def _replayed(
        self, known: _Known, compute: Callable[[], Result], tensors: list[Tensor], records: int
    ) -> Result:
        assert known.program is not None
        try:
            result: Result = known.program(tensors, records)
        except (RuntimeError, IndexError):  # a class out of range, say: the model names the line
            return compute()
        known.runs += 1
        if known.runs > _COMPARED and self._coin() >= _AGAIN:
            return result
        own = compute()
        if not _agree(result, own, records):
            known.refuse_another(for_good=True)
            if known.runs > _COMPARED:
                warnings.warn(
                    "The model does something else than it did some steps ago, though nothing in "
                    "it has changed: it seems to read the clock, a file or the like. The last "
                    "steps were made with the model as it was before.",
                    StaleProgram,
                    stacklevel=2,
                )
        return own


@dataclass
class _Known:
    """What is known of one kind of input."""

    runs: int = 0
    tries: int = 0
    first: Recording | None = None
    program: Program | None = field(default=None, repr=False)

    def record(
        self, compute: Callable[[], Result], tensors: Sequence[Tensor], records: int
    ) -> Result:
        """Runs and records it; with a second recording, makes the program."""
        recording = Recording(compute, tensors, records)
        try:
            recording.take_apart()
            if recording.nbytes > _MOST_BYTES:
                raise NotRecordable("it is large")
            if self.first is None:
                self.first = recording
            else:
                self.program, self.first, self.runs = Program(self.first, recording), None, 0
        except NotRecordable:
            self.refuse_another()
        result: Result = recording.result
        return result

    def refuse_another(self, *, for_good: bool = False) -> None:
        """Counts a failure: after a few, nothing is recorded any more."""
        self.tries = _TRIES if for_good else self.tries + 1
        self.first = None
        if self.tries >= _TRIES:
            self.program = None


def _agree(one: Any, two: Any, records: int) -> bool:
    """Whether two results are the same up to rounding."""
    (form, tensors), (other, others) = taken_apart(one, records), taken_apart(two, records)
    return form == other and all(map(_close, tensors, others))


def _close(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, two)
    finite = two[torch.isfinite(two)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, two, rtol=_CLOSE, atol=_CLOSE * scale, equal_nan=True)
