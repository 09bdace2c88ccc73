"""``capture``: per-record gradients from one forward and one backward pass.

The model and the loss are run for one record, and ``torch.vmap`` makes the batch of it
(``one_record.py``): no record can reach another. Meanwhile the model's trainable parameters are
replaced by tracked tensors, which are always put back. The first capture of a model is compared
with autograd (``checking.py``), so that no parameter can escape.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from plumbline.gradients import one_by_one
from plumbline.gradients.allocator import keep_freed_memory
from plumbline.gradients.checking import ANOTHER_SCALE, AutogradCheck, Difference, unsteady
from plumbline.gradients.errors import (
    CUT_OFF,
    CaptureError,
    EscapedParameterError,
    LossError,
    RecordsMixError,
)
from plumbline.gradients.model_parts import ModelParts, parts_of
from plumbline.gradients.one_record import for_each_record, record_count
from plumbline.gradients.opaque import refuse_autocast
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.gradients.substitution import substituted
from plumbline.gradients.tape import Offset, Tape, Weight
from plumbline.gradients.terms import Dense, Term
from plumbline.gradients.tracked import Tracked
from plumbline.record_random import Draws

Loss = Callable[[nn.Module, Any], Tensor]
"""From the model and a batch to one loss per row; it is called with one record."""

Isolation = Literal["vmap", "loop"]
"""How records are kept apart: all at once by ``torch.vmap``, or one after the other."""


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
    loss: Loss,
    batch: Any,
    at: At = None,
    *,
    rows: int | None = None,
    random: Draws | None = None,
    isolation: Isolation = "vmap",
) -> PerSampleGradients:
    """The gradient of each record's own loss, from one forward and one backward pass.

    Weights, hooks, ``requires_grad``, ``.grad`` and training mode are restored when it returns or
    raises. The first capture of a model runs a second backward pass as a check.

    Args:
        model: The model; its trainable parameters are the ones captured.
        loss: One loss per row, from the model and a batch. It is called with a batch of one record.
        batch: Tensors with one row per record, in any nesting. What is not a tensor is the same for
            every record.
        at: Where the gradients are taken: at the weights as they are (None), at weights shifted by
            one offset for all records (a mapping by parameter name), or at every record's own
            weights (a ``Perturbation``).
        rows: If given, so many adjacent rows of the batch are one record and may depend on each
            other (BatchNorm is over them). The gradients are those of their summed losses.
        random: Each record's random numbers, for dropout and the like. By default they follow from
            torch's default generator and the place in the batch.
        isolation: ``"vmap"``, or ``"loop"`` for models that it cannot run: one record at a time.

    Raises:
        CaptureError: With the reason and the remedy, when per-record gradients are not defined
            or cannot be computed.
    """
    keep_freed_memory()
    refuse_autocast()
    parts = parts_of(model)
    _refuse_misfit(at, parts.parameters)
    if parts.batch_norms and rows is None:
        raise RecordsMixError(  # before it runs, which would change its counters
            f"The module {parts.batch_norms[0]} is in training mode, where every record's output "
            "depends on the whole batch. Use GroupNorm (plumbline.suggest_fixes(model) does), or "
            "put the layer in evaluation mode."
        )
    records = record_count(batch, rows)
    if isolation not in get_args(Isolation):
        raise ValueError(f"isolation is {isolation!r}; it must be 'vmap' or 'loop'.")
    if isinstance(at, Perturbation) and at.rows != records:
        raise CaptureError(
            f"The perturbation is for {at.rows} records, but the batch has {records}."
        )
    if records == 0:
        terms = {name: _absent(p.detach(), 0) for name, p in parts.parameters.items()}
        return PerSampleGradients(terms, 0, next(iter(parts.parameters.values())).new_zeros(0))
    if isolation == "loop":
        offsets = at.offsets() if isinstance(at, Perturbation) else None
        shared = at if isinstance(at, Mapping) else None
        losses, dense = one_by_one.gradients(
            parts, lambda record: own_loss(loss(model, record), rows or 1), batch,
            records, rows=rows, offsets=offsets, shared=shared, random=random,
        )  # fmt: skip
        refuse_autocast()
        return PerSampleGradients({k: Dense(v) for k, v in dense.items()}, records, losses)
    confirmed = _CONFIRMED.setdefault(model, set())
    tape = Tape(records, random, rows=rows, checked=parts.signature not in confirmed)
    run = _Run(model, parts, loss, batch, at, tape)
    refuse_autocast()  # which the model may have left on
    if run.wrong is not None:
        raise EscapedParameterError(run.wrong.message)
    if run.compared:
        confirmed.add(parts.signature)
    return PerSampleGradients(run.terms, records, run.losses)


_CONFIRMED: weakref.WeakKeyDictionary[nn.Module, set[object]] = weakref.WeakKeyDictionary()
"""Which trainable parameters and modes of a model a capture was compared with autograd for."""


class _Run:
    """One forward and backward pass over tracked parameters.

    Attributes:
        terms: Every trainable parameter's gradients.
        losses: Each record's loss, ``[B]``.
        compared: Whether the capture was compared with autograd.
        wrong: How it differs from autograd, if it was compared and does.
    """

    def __init__(
        self, model: nn.Module, parts: ModelParts, loss: Loss, batch: Any, at: At, tape: Tape
    ) -> None:
        self.wrong: Difference | None = None
        self._tape = tape
        parameters = parts.parameters
        weights = _weights(tape, parameters, at)
        stand_ins = {name: Tracked.of(weight) for name, weight in weights.items()}
        with substituted(parts, stand_ins), torch.enable_grad():
            values = record_losses(model, loss, batch, tape)
            self.losses = values.detach()
            self.compared = tape.checked and bool(torch.isfinite(self.losses).all())
            tape.backward(values.sum(), keep=self.compared)
            self.terms = _taken(weights, tape.records)
            if self.compared:
                probe = AutogradCheck(self.losses)
                probe.differentiate(tape, values, weights, parameters, stand_ins)
                self.wrong = self._difference(probe)
            if self.wrong is not None:
                # Perhaps a record's gradient is only rounding: it is left out, and a later batch
                # will be checked.
                tape.backward(ANOTHER_SCALE * values.sum(), keep=True)
                probe.leave_out(self._unsteady(_taken(weights, tape.records)))
                probe.differentiate(tape, values, weights, parameters, stand_ins)
                self.compared = probe.complete
                if tape.records == 1 or bool(probe.weights.any()):
                    self.wrong = self._difference(probe)
                else:
                    self.wrong = None
            tape.release()

    @torch.no_grad()
    def _difference(self, probe: AutogradCheck) -> Difference | None:
        return probe.difference(self.terms, narrow=self._tape.narrow)

    @torch.no_grad()
    def _unsteady(self, again: Mapping[str, Term]) -> Tensor:
        return unsteady(self.terms, again, narrow=self._tape.narrow)


def record_losses(model: nn.Module, loss: Loss, batch: Any, tape: Tape) -> Tensor:
    """Each record's loss, ``[B]``, with the graph that leads to its gradient."""
    values = for_each_record(lambda record: _tensor(loss(model, record)), batch, tape)
    values = _own_losses(values, tape.rows)
    if torch.is_grad_enabled() and not values.requires_grad:
        raise LossError(CUT_OFF)
    return values


def own_loss(values: object, rows: int) -> Tensor:
    """One record's loss, a number, from what the loss function returned for its rows."""
    return _own_losses(_tensor(values)[None], rows)[0]


def _tensor(values: object) -> Tensor:
    """What the loss function returned for one record, if it is a tensor that knows of it."""
    if isinstance(values, Tracked):
        raise LossError(
            f"The losses depend on the parameter '{values._weight.name}' but on no record: the "
            "module that uses it ignores its input, so one record's gradient is not defined."
        )
    if not isinstance(values, Tensor):
        raise LossError(
            f"The loss must be a tensor with one number per record, got {type(values).__name__}."
        )
    return values


def _own_losses(values: Tensor, rows: int) -> Tensor:
    """Each record's loss, ``[B]``, from what the loss function returned for each record's rows."""
    own = tuple(values.shape[1:])
    if own != (rows,) and (own or rows > 1):
        raise LossError(
            f"The loss of a batch of {rows} must have shape [{rows}], one loss per record; got "
            f"shape {own}. Reduce each record's losses to one number, and no further."
        )
    if rows > 1:
        return values.sum(1)
    return values[:, 0] if own else values


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
