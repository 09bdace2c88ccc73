"""``capture``: one forward and one backward pass, every record's gradient.

The model's trainable parameters are replaced by tracked tensors while ``losses()`` runs, and put
back whatever happens. The first capture of a model is checked against autograd (``checking.py``),
so that no parameter can escape and no record can be taken for another; so is any later one whose
layout could be read in two ways (a batch that is by chance as long as a sequence).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plumbline.gradients.checking import Difference, Probe
from plumbline.gradients.errors import CaptureError, EscapedParameterError, LossError
from plumbline.gradients.history import EmptyBatch, History, history_of
from plumbline.gradients.per_sample import PerSampleGradients
from plumbline.gradients.substitution import refuse_unsupported, substituted
from plumbline.gradients.tape import Memory, Offset, Place, Tape, Weight, Where
from plumbline.gradients.terms import Dense, Term, merge
from plumbline.gradients.tracked import Tracked


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Each record at its own weights: ``theta + scale_i g_i``.

    Attributes:
        gradients: The per-record gradients ``g_i``.
        scale: ``[B]``, one number per record of ``gradients``, or one for all.
        index: When the new batch has several rows per record (views), whose gradient each row
            uses, ``[rows]``; by default row i uses record i's.
    """

    gradients: PerSampleGradients
    scale: Tensor | float
    index: Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of rows of the batch to be captured."""
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
) -> PerSampleGradients:
    """Every record's gradient of its own loss, from one forward and one backward pass.

    Weights, hooks, ``requires_grad``, ``.grad`` and training mode are as before when it returns,
    also by an exception. The first capture of a model runs a second backward pass as a check.

    Args:
        model: The model; its trainable parameters are the ones captured.
        losses: Runs the model on a batch and returns one loss per record, ``[B]``.
        at: Where the gradients are taken: at the weights as they are (None), at weights shifted by
            one offset for all records (a mapping by parameter name), or at every record's own
            weights (a ``Perturbation``).
        records: The number of records, when the caller knows it. Otherwise it is read from the
            model's first input, and the batch is run again if that was wrong.

    Raises:
        CaptureError: With the reason and the remedy, when per-record gradients are not defined
            or cannot be had.
    """
    refuse_unsupported(model)
    history = history_of(model)
    if isinstance(at, Perturbation) and records is None:
        records = at.rows
    checked = history.unconfirmed(model)
    start = torch.get_rng_state()
    run = _run(model, losses, at, records, history, checked, start)
    if run.wrong is not None:
        run = _otherwise(run, model, losses, at, history, start)
    if run.compared:
        history.confirm(model, run.tape)
    return PerSampleGradients(run.terms, run.records, run.losses)


def _run(
    model: nn.Module,
    losses: Callable[[], Tensor],
    at: At,
    records: int | None,
    history: History,
    checked: bool,
    start: Tensor,
) -> _Run:
    """A run, repeated with the same random numbers when something about it was misread."""
    torch.set_rng_state(start)
    tape = Tape(records, history.memory, checked=checked)
    try:
        with history.counting(model, tape):
            run = _Run(model, losses, at, tape)
    except EmptyBatch:
        return _Run.empty(model, losses, tape)
    except (RuntimeError, ValueError, IndexError):
        # Perhaps only the number of records was misread: what does the model itself say?
        if records is not None:
            raise
        torch.set_rng_state(start)
        with torch.no_grad():
            count = _examined(losses(), None)
        if count in (tape.expected, 0):
            raise
        history.learn(count)
        return _run(model, losses, at, count, history, checked, start)
    if tape.unsure and not checked and run.records:
        return _run(model, losses, at, run.records, history, True, start)
    return run


def _otherwise(
    run: _Run,
    model: nn.Module,
    losses: Callable[[], Tensor],
    at: At,
    history: History,
    start: Tensor,
) -> _Run:
    """The first run with another reading of the layouts that agrees with autograd.

    Two readings are possible only by chance (a batch as long as a sequence), and a wrong one shows
    at the parameter that met the misread tensor: its places are read otherwise, one after another.
    """
    wrong = run.wrong
    memory = Memory(dict(history.memory.layouts))
    tried: dict[str, Iterator[dict[Place, Where]]] = {}
    while run.wrong is not None:
        name = run.wrong.parameter
        places = {place: ways for place, ways in run.tape.unsure.items() if place[0] == name}
        if name not in tried:
            tried[name] = _readings(places)
        reading = next(tried[name], None)
        if reading is None:
            raise EscapedParameterError(wrong.message if wrong else "")
        memory.layouts |= reading
        torch.set_rng_state(start)
        try:
            run = _Run(model, losses, at, Tape(run.records, memory, checked=True))
        except (RuntimeError, ValueError, IndexError):
            continue
    history.memory = memory
    return run


def _readings(places: Mapping[Place, list[Where]]) -> Iterator[dict[Place, Where]]:
    """Every combination of layouts of the places, but for the first."""
    combinations = itertools.product(*places.values())
    for ways in itertools.islice(combinations, 1, 16):
        yield dict(zip(places, ways, strict=True))


class _Run:
    """One forward and backward pass over tracked parameters.

    Attributes:
        terms: Every trainable parameter's gradients.
        compared: Whether the capture was compared with autograd.
        wrong: How it differs from autograd, if it was compared and does.
    """

    def __init__(
        self, model: nn.Module, losses: Callable[[], Tensor], at: At, tape: Tape
    ) -> None:
        self.tape = tape
        self.wrong: Difference | None = None
        parameters = _trainable(model)
        tape.constants = {id(tensor) for tensor in model.buffers()}
        weights = _weights(tape, parameters, at)
        probe: Probe | None = None
        with substituted(model, parameters, weights) as tracked, torch.enable_grad():
            values = losses()
            self.records = _examined(values, tape.expected)
            self.losses = values.detach()
            if tape.checked and bool(torch.isfinite(self.losses).all()):
                probe = Probe(self.losses)
            tape.backward(values.sum(), keep=probe is not None)
            if probe is not None:
                probe.differentiate(values, weights, parameters, tracked)
        self.compared = probe is not None
        with torch.no_grad():
            self.terms = {
                name: merge(weight.terms) if weight.terms else _absent(weight.value, self.records)
                for name, weight in weights.items()
            }
            if probe is not None:
                self.wrong = probe.difference(self.terms)

    @classmethod
    def empty(cls, model: nn.Module, losses: Callable[[], Tensor], tape: Tape) -> _Run:
        """The run of a batch without records: the model itself only shows that it can."""
        run = cls.__new__(cls)
        with torch.no_grad():
            values = losses()
        run.records, run.losses = _examined(values, 0), values
        run.tape, run.wrong, run.compared = tape, None, False
        run.terms = {name: _absent(p.detach(), 0) for name, p in _trainable(model).items()}
        return run


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _weights(tape: Tape, parameters: Mapping[str, nn.Parameter], at: At) -> dict[str, Weight]:
    values: dict[str, Tensor] = {name: p.detach() for name, p in parameters.items()}
    offsets: dict[str, Offset] = {}
    if isinstance(at, Perturbation):
        offsets = at.offsets()
    elif at is not None:
        unknown = set(at) - set(values)
        if unknown:
            raise CaptureError(
                f"The offset names {sorted(unknown)[0]!r}, which is not a trainable parameter."
            )
        values |= {name: values[name] + offset for name, offset in at.items()}
    return {name: Weight(tape, name, value, offsets.get(name)) for name, value in values.items()}


def _absent(value: Tensor, records: int) -> Term:
    """The gradients of a parameter that no record met: zeros, in one number's memory."""
    return Dense(value.new_zeros(()).expand(records, *value.shape))


def _examined(values: object, expected: int | None) -> int:
    """The number of losses, when they are one per record."""
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
        raise LossError(
            f"losses() returned {len(values)} losses for a batch of {expected} records. Return "
            "exactly one loss per record (for sequences, the mean over the record's own tokens)."
        )
    if torch.is_grad_enabled() and not values.requires_grad and len(values):
        raise LossError(
            "The losses do not depend on any trainable parameter (is the model called under "
            "no_grad, or its output detached?), so there is no gradient to capture."
        )
    return len(values)
