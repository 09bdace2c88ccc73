"""``capture``: per-record gradients from one forward and one backward pass.

The model's trainable parameters are replaced by tracked tensors while ``losses()`` runs, and are
always put back. The first capture of a model is checked against autograd (``checking.py``), so that
no parameter can escape and no two records can be confused; so is any later capture whose layout is
ambiguous (a batch that happens to be as long as a sequence).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plumbline.gradients.allocator import keep_freed_memory
from plumbline.gradients.capture_history import EmptyBatch, History, history_of
from plumbline.gradients.checking import ANOTHER_SCALE, AutogradCheck, Difference, unsteady
from plumbline.gradients.errors import (
    CaptureError,
    EscapedParameterError,
    LossError,
    RecordsMixError,
    UnsupportedModelError,
)
from plumbline.gradients.layout_search import LayoutSearch
from plumbline.gradients.model_parts import ModelParts, parts_of
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.gradients.random_state import RandomState
from plumbline.gradients.substitution import substituted
from plumbline.gradients.tape import Offset, Tape, Weight
from plumbline.gradients.terms import Dense, Term
from plumbline.gradients.tracked import Tracked


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Each record at its own weights: ``theta + scale_i g_i``.

    Attributes:
        gradients: The per-record gradients ``g_i``.
        scale: ``[B]``, one number per record of ``gradients``, or one for all.
        index: When the new batch has several rows per record (views), the record whose gradient
            each row uses, ``[rows]``; by default row i uses record i's.
    """

    gradients: PerSampleGradients
    scale: Tensor | float
    index: Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the batch to capture."""
        return self.gradients.records if self.index is None else len(self.index)

    def offsets(self) -> dict[str, Offset]:
        """Each parameter's per-row offset."""
        gradients = self.gradients
        scale = torch.as_tensor(
            self.scale, dtype=gradients.losses.dtype, device=gradients.losses.device
        ).expand(gradients.records)
        if self.index is not None:
            scale, gradients = scale[self.index], gradients.select(self.index)
        return {name: Offset(gradients.term(name), scale) for name in gradients.names}


At = Perturbation | Mapping[str, Tensor] | None


def capture(
    model: nn.Module,
    losses: Callable[[], Tensor],
    at: At = None,
    *,
    records: int | None = None,
    together: Tensor | None = None,
) -> PerSampleGradients:
    """The gradient of each record's own loss, from one forward and one backward pass.

    Weights, hooks, ``requires_grad``, ``.grad`` and training mode are restored when it returns or
    raises. The first capture of a model runs a second backward pass as a check.

    Args:
        model: The model; its trainable parameters are the ones captured.
        losses: Runs the model on a batch and returns one loss per record, ``[B]``.
        at: Where the gradients are taken: at the weights as they are (None), at weights shifted by
            one offset for all records (a mapping by parameter name), or at every record's own
            weights (a ``Perturbation``).
        records: The number of records, if known. Otherwise it is read from the model's first
            input, and the batch is run again if that was wrong.
        together: When a record is several rows of the batch that may depend on each other (they
            share batch statistics), the record that each row belongs to, ``[rows]``, from 0.
            ``losses`` then returns a loss per row, and the gradients are those of each record's
            summed losses.

    Raises:
        CaptureError: With the reason and the remedy, when per-record gradients are not defined
            or cannot be computed.
    """
    keep_freed_memory()
    parts = parts_of(model)
    _refuse_misfit(at, parts.parameters)
    start = RandomState(parts.parameters.values())
    task = _Task(model, parts, losses, at, history_of(model), start, together)
    if isinstance(at, Perturbation) and records is None:
        records = at.rows
    run = _run(task, records, task.history.unconfirmed(parts))
    if run.compared:
        task.history.confirm(parts, run.tape)
    gradients = PerSampleGradients(run.terms, run.records, run.losses)
    return gradients if together is None else gradients.pool(together)


@dataclass(frozen=True)
class _Task:
    """The arguments of a capture; ``start`` is the random state before it."""

    model: nn.Module
    parts: ModelParts
    losses: Callable[[], Tensor]
    at: At
    history: History
    start: RandomState
    together: Tensor | None


def _run(task: _Task, records: int | None, checked: bool) -> _Run:
    """A run, repeated with the same random numbers when something was misread."""
    tape = Tape(records, task.history.memory, checked=checked)
    try:
        if records == 0:
            raise EmptyBatch
        with task.history.counting(task.model, tape):
            run = _Run(task, tape)
    except EmptyBatch:
        return _Run.empty(task, tape)
    except (RecordsMixError, UnsupportedModelError):
        raise  # the number of records is not to blame, and another run could change the module
    except (RuntimeError, ValueError, IndexError) as error:
        # Perhaps only the number of records was misread: count the losses of a plain run.
        task.start.restore()
        with torch.no_grad():
            count = examined(task.losses(), records)
        task.start.restore()
        if count != tape.expected:
            if tape.expected is None and isinstance(error, LossError):
                raise
            if tape.expected is not None and not task.history.plausible(count):
                raise _wrong_length(count, tape.expected) from error
            run = _run(task, count, checked)
            task.history.learn(count)
            return run
        return _otherwise(task, tape, None, error)
    if tape.unsure and not checked:
        task.start.restore()
        return _run(task, run.records, True)
    if run.wrong is not None:
        return _otherwise(task, tape, run.wrong.parameter, EscapedParameterError(run.wrong.message))
    return run


def _otherwise(task: _Task, tape: Tape, parameter: str | None, error: Exception) -> _Run:
    """The first run with other layouts that agrees with autograd; raises ``error`` if none does."""
    search = LayoutSearch()
    while (layouts := search.after(tape.choices, parameter)) is not None:
        task.start.restore()
        tape = Tape(tape.expected, task.history.memory, checked=True, layouts=layouts)
        try:
            run = _Run(task, tape)
        except (RecordsMixError, UnsupportedModelError):
            raise
        except (RuntimeError, ValueError, IndexError):
            parameter = None
        else:
            if run.wrong is None:
                return run
            parameter = run.wrong.parameter
    raise error


class _Run:
    """One forward and backward pass over tracked parameters.

    Attributes:
        terms: Every trainable parameter's gradients.
        compared: Whether the capture was compared with autograd.
        wrong: How it differs from autograd, if it was compared and does.
    """

    def __init__(self, task: _Task, tape: Tape) -> None:
        self.tape = tape
        self.wrong: Difference | None = None
        parameters = task.parts.parameters
        tape.constants = task.parts.constants
        weights = _weights(tape, parameters, task.at)
        with substituted(task.parts, weights) as tracked, torch.enable_grad():
            values = task.losses()
            self.records = examined(values, tape.expected)
            self.losses = values.detach()
            self.compared = tape.checked and bool(torch.isfinite(self.losses).all())
            tape.backward(values.sum(), keep=self.compared)
            self.terms = _taken(weights, self.records)
            if self.compared:
                probe = AutogradCheck(self.losses, task.together)
                probe.differentiate(values, weights, parameters, tracked)
                self.wrong = self._difference(probe)
            if self.wrong is not None:
                # Perhaps a record's gradient is only rounding. Alone in its batch a record cannot
                # be confused with another, and a later batch will be checked.
                tape.backward(ANOTHER_SCALE * values.sum(), keep=True)
                probe.leave_out(self._unsteady(_taken(weights, self.records)))
                probe.differentiate(values, weights, parameters, tracked)
                self.compared = probe.complete
                if self.records == 1 or bool(probe.weights.any()):
                    self.wrong = self._difference(probe)
            tape.release()

    @torch.no_grad()
    def _difference(self, probe: AutogradCheck) -> Difference | None:
        return probe.difference(self.terms, narrow=self.tape.narrow)

    @torch.no_grad()
    def _unsteady(self, again: Mapping[str, Term]) -> Tensor:
        return unsteady(self.terms, again, narrow=self.tape.narrow)

    @classmethod
    def empty(cls, task: _Task, tape: Tape) -> _Run:
        """The run of a batch without records; it only shows that the model accepts one."""
        run = cls.__new__(cls)
        with torch.no_grad():
            values = task.losses()
        run.records, run.losses = examined(values, 0), values
        run.tape, run.wrong, run.compared = tape, None, False
        run.terms = {name: _absent(p.detach(), 0) for name, p in task.parts.parameters.items()}
        return run


def _refuse_misfit(at: At, parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuses an offset that does not fit the model's trainable parameters."""
    if at is None:
        return
    if isinstance(at, Perturbation):
        scale, records = torch.as_tensor(at.scale), at.gradients.records
        if scale.dim() and scale.shape != (records,):
            raise CaptureError(
                f"The perturbation's scale must be one number, or one per record: expected shape "
                f"({records},), got {tuple(scale.shape)}."
            )
        shapes = {name: at.gradients.term(name).shape for name in at.gradients.names}
    else:
        shapes = {name: offset.shape for name, offset in at.items()}
    for name, shape in shapes.items():
        if name not in parameters:
            raise CaptureError(
                f"The offset names {name!r}, which is not a trainable parameter of the model. Give "
                "offsets of this model's parameters, by the names in named_parameters()."
            )
        if shape != parameters[name].shape:
            raise CaptureError(
                f"The offset of {name!r} has shape {tuple(shape)}, but the parameter has shape "
                f"{tuple(parameters[name].shape)}. Give an offset of the parameter's shape."
            )


def _weights(tape: Tape, parameters: Mapping[str, nn.Parameter], at: At) -> dict[str, Weight]:
    values: dict[str, Tensor] = {name: p.detach() for name, p in parameters.items()}
    offsets: dict[str, Offset] = {}
    if isinstance(at, Perturbation):
        offsets = at.offsets()
    elif at is not None:
        values |= {name: values[name] + offset for name, offset in at.items()}
    return {name: Weight(tape, name, value, offsets.get(name)) for name, value in values.items()}


def _taken(weights: Mapping[str, Weight], records: int) -> dict[str, Term]:
    """Every parameter's gradients from a backward pass."""
    with torch.no_grad():
        return {
            name: weight.taken() or _absent(weight.value.detach(), records)
            for name, weight in weights.items()
        }


def _absent(value: Tensor, records: int) -> Term:
    """The gradients of a parameter that no record uses: zeros, in one number's memory."""
    return Dense(value.new_zeros(()).expand(records, *value.shape))


def examined(values: object, expected: int | None) -> int:
    """The number of losses, once they are known to be one per record."""
    if isinstance(values, Tracked):
        raise LossError(
            f"The losses depend on the parameter '{values._weight.name}' but on no record: the "
            "module that uses it ignores its input, so one record's gradient is not defined."
        )
    if not isinstance(values, Tensor):
        raise LossError(f"losses() must return a tensor of shape [B], got {type(values).__name__}.")
    if values.dim() != 1:
        hint = 'Use reduction="none" in the loss' if values.dim() == 0 else "Reduce each record's"
        raise LossError(
            f"losses() must return one loss per record, shape [B]; got shape "
            f"{tuple(values.shape)}. {hint}{' losses to one number' if values.dim() else ''}."
        )
    if expected is not None and len(values) != expected:
        raise _wrong_length(len(values), expected)
    if torch.is_grad_enabled() and not values.requires_grad and len(values):
        raise LossError(
            "The losses do not depend on any trainable parameter (is the model called under "
            "no_grad, or its output detached?), so there is no gradient to capture."
        )
    return len(values)


def _wrong_length(count: int, expected: int | None) -> LossError:
    return LossError(
        f"losses() returned {count} losses for a batch of {expected} records. Return exactly one "
        "loss per record (for sequences, the mean over the record's own tokens). If the "
        f"batch really has {count} records, pass capture(..., records={count})."
    )
