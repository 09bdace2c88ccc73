"""The programs of a run's captures: recorded on made-up records, run instead of the model's code.

A program (``recording.py``) is what the capture of this very model did, one record at a time under
``vmap``, with its Python taken away. It is recorded on made-up records of the shapes and types at
hand, at two sizes, and compared with the capture to the bit at two others. So it depends on the
model and on those shapes, and on no record's values, nor on when it was recorded.

It is the capture itself as long as nothing changes that decides which operations run. For a model
and a loss that are torch's own (``torch_modules.py``), all of that is compared before each use.
Others are recorded on request only, on trust: their programs are dropped when a change is seen,
and the model is run beside them at the first steps and at secret ones. If the two differ, the
model's result counts, nothing is recorded any more, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from plumbline.gradients.capturing import At, Loss, capture
from plumbline.gradients.kernels import KERNELS, as_if, bucket
from plumbline.gradients.model_parts import ModelParts, parts_of
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.gradients.recording import (
    NotRecordable,
    Program,
    Recording,
    put_together,
    taken_apart,
)
from plumbline.gradients.torch_modules import TorchModules
from plumbline.record_random import kept_generators

_SIZES = ((11, 13), (17, 19), (23, 29))  # the next ones if the model has the same number somewhere
_CHECKED = 2, 31
_COMPARED = 3  # first runs of a program on trust that are compared
_AGAIN = 1 / 64  # how often later ones are
_MOST_KINDS = 64  # of inputs
_MOST_BYTES = 1 << 21  # of one record's run; beside a larger one, Python costs little
_CLOSE = 1e-4


class StaleProgram(UserWarning):
    """A model that reads something which no one can watch has changed during a run."""


@dataclass
class Trust:
    """For a model with code of its own, whose programs are used on request.

    Attributes:
        version: Gives another number whenever a change is seen of what the model's code can read.
        coin: Uniform in [0, 1); decides when a program is compared, and should be secret.
    """

    version: Callable[[], int]
    coin: Callable[[], float]


class Programs:
    """The programs of one run, each for one kind of input.

    Args:
        model: The model.
        loss: What its loss is: a module of torch's, or anything else.
        trust: Given if the model and the loss may be others than torch's own.

    Attributes:
        used: Whether a program has been run instead of the model.
    """

    def __init__(self, model: nn.Module, loss: Any, trust: Trust | None = None) -> None:
        self._model, self._loss, self._trust = model, loss, trust
        self._modules = TorchModules(model, loss)
        self._seen: tuple[int, ModelParts] | None = None  # a model on trust, as it was
        self._known: dict[object, _Known] = {}
        self.used = False

    @property
    def proven(self) -> bool:
        """Whether the model and the loss are torch's own, as they are now."""
        if not self._modules.unchanged():
            self._modules, self._known = TorchModules(self._model, self._loss), {}
        return self._modules.alone

    def run(
        self, own: Callable[[], PerSampleGradients], loss: Loss, batch: Any, at: At, records: int
    ) -> PerSampleGradients:
        """The capture of a batch.

        Args:
            own: Makes it by running the model.
            loss: One loss per row, from the model and a batch.
            batch: Tensors with one row per record, in any nesting.
            at: Where the gradients are taken, as for ``capture``.
            records: How many records there are.
        """
        given = Given.of(batch, at, records) if self._usable() else None
        if given is None:
            return own()
        sized = given.key, bucket(records)
        known = self._known.get(given.key) or self._known.get(sized)
        if known is None:
            # First of all it is captured as ever: compared with autograd, and kernels are chosen.
            first = own()
            if len(self._known) < _MOST_KINDS:  # lengths may change from batch to batch
                asked = KERNELS.asked
                with as_if(records):
                    known = _Known(_recorded(self._model, loss, given))
                self._known[given.key if KERNELS.asked == asked else sized] = known
            return first
        if known.program is None:
            return own()
        try:
            result: PerSampleGradients = known.program(given.tensors, records)
        except (RuntimeError, IndexError):  # a class out of range, say: the model names the line
            return own()
        known.runs, self.used = known.runs + 1, True
        if self._trust is None or (known.runs > _COMPARED and self._trust.coin() >= _AGAIN):
            return result
        return known.compared(result, own(), records)

    def _usable(self) -> bool:
        # Modes of someone else's see every operation.
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
            return False
        if self._trust is None:
            return self.proven
        version, parts = self._trust.version(), parts_of(self._model)
        if self._seen is None or version != self._seen[0] or parts is not self._seen[1]:
            self._seen, self._known = (version, parts), {}
        return True


class Given(NamedTuple):
    """What a capture is given, taken apart.

    Attributes:
        key: Its nesting, and the shapes and types of its tensors: what a program is made for.
        tensors: The tensors, those of the records first.
    """

    key: tuple[Any, ...]
    tensors: list[Tensor]

    @classmethod
    def of(cls, batch: Any, at: At, records: int) -> Given | None:
        """Takes it apart; None if it is not of a form that can be made up."""
        shared = dict(at) if isinstance(at, Mapping) else {}
        try:
            form, tensors = taken_apart((batch, None if shared else at), records)
        except NotRecordable:
            return None
        kinds: list[tuple[Any, ...]] = []
        memory: dict[tuple[Any, ...], int] = {}
        for place, one in enumerate(tensors):
            # A subclass may have code of its own, which would see all records.
            if type(one) is not Tensor or not one.is_contiguous():
                return None
            if one.dim() and one.shape[0] != records:
                return None
            # Layer files look at whether two tensors are the same numbers in memory.
            first = memory.setdefault((one.data_ptr(), one.dtype, one.numel()), place)
            kinds.append((one.dtype, one.device, one.dim(), one.shape[1:], first))
        named = tuple((name, one.dtype, one.shape) for name, one in shared.items())
        return cls((form, tuple(kinds), named), [*tensors, *shared.values()])

    def made_up(self, records: int, generator: torch.Generator) -> tuple[Any, At, list[Tensor]]:
        """Made-up records of the same kind: a batch, where to capture, and their tensors."""
        form, kinds, named = self.key
        made: list[Tensor] = []
        for place, (dtype, device, dims, shape, first) in enumerate(kinds):
            size = (records, *shape) if dims else ()
            if first < place:
                made.append(made[first].view(size))
            else:
                made.append(_values(size, dtype, generator).to(device))
        batch, at = put_together(form, made, records)
        shared = {name: _values(shape, dtype, generator) for name, dtype, shape in named}
        return batch, shared or at, [*made, *shared.values()]


@dataclass
class _Known:
    """What is known of one kind of input: its program, if there is one, and how often it ran."""

    program: Program | None
    runs: int = 0

    def compared(
        self, result: PerSampleGradients, own: PerSampleGradients, records: int
    ) -> PerSampleGradients:
        """The model's own result; if the program's is another, it is dropped for good."""
        if not _agree(result, own, records, _close):
            self.program = None
            if self.runs > _COMPARED:
                warnings.warn(
                    "The model does something else than it did some steps ago, though nothing in "
                    "it has changed: it seems to read the clock, a file or the like. The last "
                    "steps were made with the model as it was before.",
                    StaleProgram,
                    stacklevel=3,
                )
        return own


def _recorded(model: nn.Module, loss: Loss, given: Given) -> Program | None:
    """The program for one kind of input; None if there is none."""
    generator = torch.Generator().manual_seed(0)

    def recording(records: int) -> Recording:
        batch, at, tensors = given.made_up(records, generator)
        capture(model, loss, batch, at)  # what is done once is not recorded
        return Recording(lambda: capture(model, loss, batch, at), tensors, records)

    def program_of(sizes: tuple[int, int]) -> Program:
        recordings = [recording(records) for records in sizes]
        for one in recordings:
            one.take_apart()
        return Program(*recordings)

    def holds(program: Program, records: int) -> bool:
        batch, at, tensors = given.made_up(records, generator)
        own = capture(model, loss, batch, at)
        return _agree(program(tensors, records), own, records, torch.equal)

    with kept_generators(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the model's own run has said it
        try:
            if recording(2).nbytes > 2 * _MOST_BYTES:
                return None
            for sizes in _SIZES:
                with suppress(NotRecordable):
                    program = program_of(sizes)
                    if all(holds(program, records) for records in _CHECKED):
                        return program
        except Exception:
            return None  # made-up records do not go through the model; real ones may
    return None


def _values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Made-up values: numbers around zero, or the class, the word or the place 0."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    return torch.zeros(shape, dtype=dtype)


def _agree(one: Any, two: Any, records: int, same: Callable[[Tensor, Tensor], bool]) -> bool:
    """Whether two results have the same form, and the same numbers."""
    (form, tensors), (other, others) = taken_apart(one, records), taken_apart(two, records)
    return form == other and all(map(same, tensors, others))


def _close(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, two)
    finite = two[torch.isfinite(two)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, two, rtol=_CLOSE, atol=_CLOSE * scale, equal_nan=True)
