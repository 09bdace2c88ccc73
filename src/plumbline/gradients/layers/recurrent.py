"""Recurrent layers and cells: RNN, GRU and LSTM, with the gates of all steps captured at once.

A gate is ``x_t W_ih^T + b_ih + h_{t-1} W_hh^T + b_hh`` before its nonlinearity, so one gradient
``d_t`` belongs to both projections: the inputs of all steps are projected in one product, its
output is watched, and ``sum_t d_t x_t^T`` and ``sum_t d_t h_{t-1}^T`` are the gradients of the two
weights. (A GRU's reset gate scales the hidden part of its new gate, and that part's gradient with
it.) The steps are one function with a derivative of its own (``recurrent_scan.py``). What it cannot
do runs step by step with ordinary functions: Hessian products, autocast and ``proj_size``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from plumbline.gradients.errors import UnsupportedModelError
from plumbline.gradients.layers import handles
from plumbline.gradients.layers.random import kept
from plumbline.gradients.layers.recurrent_projection import Projection
from plumbline.gradients.layers.recurrent_scan import (
    Gru,
    Lstm,
    Scan,
    Simple,
    State,
    Steps,
    Unrolled,
)
from plumbline.gradients.lowering import Lowered, by_record, has_records, lowered
from plumbline.gradients.tape import Tape

Kind = Literal["tanh", "relu", "gru", "lstm"]


@handles(torch.rnn_tanh, rewrites=True)
def rnn_tanh(tape: Tape, *args: Any, **kwargs: Any) -> tuple[Tensor, ...] | None:
    """``torch.rnn_tanh``, which ``nn.RNN`` calls."""
    return _layers(tape, "tanh", *args, **kwargs)


@handles(torch.rnn_relu, rewrites=True)
def rnn_relu(tape: Tape, *args: Any, **kwargs: Any) -> tuple[Tensor, ...] | None:
    """``torch.rnn_relu``, which ``nn.RNN(nonlinearity="relu")`` calls."""
    return _layers(tape, "relu", *args, **kwargs)


@handles(torch.gru, rewrites=True)
def gru(tape: Tape, *args: Any, **kwargs: Any) -> tuple[Tensor, ...] | None:
    """``torch.gru``, which ``nn.GRU`` calls."""
    return _layers(tape, "gru", *args, **kwargs)


@handles(torch.lstm, rewrites=True)
def lstm(tape: Tape, *args: Any, **kwargs: Any) -> tuple[Tensor, ...] | None:
    """``torch.lstm``, which ``nn.LSTM`` calls, including its projection (``proj_size``)."""
    return _layers(tape, "lstm", *args, **kwargs)


def _cell(
    kind: Kind,
    tape: Tape,
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    """One step of a cell, on ``[N, d]`` (or ``[d]``)."""
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    weights = (w_ih, w_hh, b_ih, b_hh)
    if not _runs((input, *state), weights):
        return None

    def on_batch(call: Lowered, args: Any, kwargs: Any) -> State:
        inputs, *states = (_own(tape, call, one).flatten(0, -2) for one in args)
        _, end = _Direction(tape, kind, *weights).run(inputs[:, None], tuple(states))
        return tuple(one.view(tape.records, *input.shape[:-1], -1) for one in end)

    end: State = lowered(on_batch, (input, *state), {})
    return end if kind == "lstm" else end[0]


handles(torch.rnn_tanh_cell, rewrites=True)(partial(_cell, "tanh"))
handles(torch.rnn_relu_cell, rewrites=True)(partial(_cell, "relu"))
handles(torch.gru_cell, rewrites=True)(partial(_cell, "gru"))
handles(torch.lstm_cell, rewrites=True)(partial(_cell, "lstm"))


@handles(torch._pack_padded_sequence, rewrites=True)
def refuse_packed(tape: Tape, *args: Any, **kwargs: Any) -> None:
    """Refuses packed sequences: their sizes depend on the data."""
    raise UnsupportedModelError(
        "The model packs its sequences (pack_padded_sequence), and the size of what comes out "
        "depends on the data. Pad the sequences instead (torch.nn.utils.rnn.pad_sequence) and "
        'read each record\'s output at its own length, or use isolation="loop".'
    )


def _layers(
    tape: Tape,
    kind: Kind,
    input: Tensor,
    hx: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Tensor, ...] | None:
    """Runs every layer and direction; outputs and last states as torch returns them."""
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    if not _runs((input, *states), params):
        return None
    count = num_layers * (1 + bidirectional)

    def on_batch(call: Lowered, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
        inputs, *starts = (_own(tape, call, one) for one in args)
        # The model's own batch N is usually one: [B * N, T, d], and [B * N, layers, H] for states.
        steps = (inputs if batch_first else inputs.transpose(1, 2)).flatten(0, 1)
        begin = [one.transpose(1, 2).flatten(0, 1) for one in starts]
        directions = _directions(tape, kind, params, has_biases, count)
        ends: list[State] = []
        for layer in range(num_layers):
            outputs = []
            for backwards in (False, True) if bidirectional else (False,):
                start = tuple(state[:, len(ends)] for state in begin)
                output, end = directions[len(ends)].run(steps, start, backwards=backwards)
                outputs.append(output)
                ends.append(end)
            steps = torch.cat(outputs, -1) if bidirectional else outputs[0]
            if dropout and train and layer < num_layers - 1:
                several = steps.shape[0] // tape.records
                mask = kept(tape, (steps.shape[1], several, steps.shape[2]), dropout, steps)
                steps = steps * mask.transpose(1, 2).flatten(0, 1)
        output = by_record(steps, tape.records)  # [B, N, T, H]
        last = [
            by_record(torch.stack(parts, 1), tape.records).transpose(1, 2)
            for parts in zip(*ends, strict=True)
        ]
        return output if batch_first else output.transpose(1, 2), *last

    return lowered(on_batch, (input, *states), {})  # type: ignore[no-any-return]


def _runs(inputs: Iterable[Tensor], weights: Iterable[Tensor | None]) -> bool:
    """Whether these are records, and shared weights."""
    return any(has_records(one) for one in inputs) and not any(
        one is not None and has_records(one) for one in weights
    )


def _own(tape: Tape, call: Lowered, tensor: Tensor) -> Tensor:
    """Each record's tensor, ``[B, ...]``; what all records share is repeated."""
    if tensor in call:
        return tensor
    known = tape.weight(tensor)  # a learned first state
    return tensor.expand(tape.records, *tensor.shape) if known is None else known.per_record()


def _directions(
    tape: Tape, kind: Kind, params: Sequence[Tensor], has_biases: bool, count: int
) -> list[_Direction]:
    """The parameters of each layer and direction, from torch's flat list."""
    size = len(params) // count
    directions = []
    for start in range(0, len(params), size):
        w_ih, w_hh, *others = params[start : start + size]
        b_ih, b_hh = others[:2] if has_biases else (None, None)
        w_hr = others[-1] if len(others) % 2 else None
        directions.append(_Direction(tape, kind, w_ih, w_hh, b_ih, b_hh, w_hr))
    return directions


class _Direction:
    """One layer in one direction."""

    def __init__(
        self,
        tape: Tape,
        kind: Kind,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        w_hr: Tensor | None = None,
    ) -> None:
        self._tape, self._kind = tape, kind
        if kind == "gru":
            self._from_input = Projection(tape, w_ih, b_ih)
            self._from_hidden = Projection(tape, w_hh, b_hh)
        else:  # both biases enter the same sum: adding them once for all steps is enough
            self._from_input = Projection(tape, w_ih, b_ih, b_hh)
            self._from_hidden = Projection(tape, w_hh)
        self._to_output = None if w_hr is None else Projection(tape, w_hr)

    def run(self, inputs: Tensor, state: State, *, backwards: bool = False) -> tuple[Tensor, State]:
        """Outputs of all steps for inputs ``[B, T, d]``, in their order, and the last state."""
        met: list[Tensor] = []  # the recurrent weight's inputs, [B, T, H]
        resets: list[Tensor] = []  # the scale of the hidden part of a GRU's new gate, likewise

        def terms(back: Tensor) -> None:
            self._from_input.note(back, inputs)
            if resets:
                size = back.shape[2] // 3
                back = torch.cat([back[..., : 2 * size], back[..., 2 * size :] * resets[0]], 2)
            self._from_hidden.note(back, met[0])

        gates = self._from_input(inputs)
        if self._from_input.is_watched or self._from_hidden.is_watched:
            gates = self._tape.watch(gates, terms, reads=inputs)
        unrolled = partial(self._unrolled, backwards=backwards, met=met, resets=resets)
        if not self._scans(gates, *state):
            return unrolled(gates, state)
        steps = self._steps(partial(self._unrolled, backwards=backwards), backwards)
        h, c = state if len(state) == 2 else (state[0], None)
        output, *end = Scan.apply(steps, gates, h, c, *self._from_hidden.values)  # type: ignore[no-untyped-call]
        met.append(steps.met)
        if steps.resets is not None:
            resets.append(steps.resets)
        return output, tuple(end)

    def _scans(self, *tensors: Tensor) -> bool:
        """Whether all steps can be one function."""
        return (
            self._to_output is None
            and self._from_hidden.is_plain
            and not torch.is_autocast_enabled(tensors[0].device.type)
            and len({one.dtype for one in (*tensors, self._from_hidden.values[0])}) == 1
        )

    def _steps(self, unrolled: Unrolled, backwards: bool) -> Steps:
        if self._kind == "lstm":
            return Lstm(self._from_hidden, unrolled, backwards=backwards)
        if self._kind == "gru":
            return Gru(self._from_hidden, unrolled, backwards=backwards)
        relu = self._kind == "relu"
        return Simple(self._from_hidden, unrolled, backwards=backwards, relu=relu)

    def _unrolled(
        self,
        gates: Tensor,
        state: State,
        *,
        backwards: bool,
        met: list[Tensor] | None = None,
        resets: list[Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """The same by ordinary functions; adds to ``met`` and ``resets``."""
        narrowed = self._narrowing(gates, backwards)
        outputs, hidden = [], []
        scales: list[Tensor] = []
        state = state[0].clone(), *state[1:]  # the caller of a cell may change it in place
        for gate in _in_order(gates.unbind(1), backwards):
            hidden.append(state[0].detach())
            if self._kind == "lstm":
                h, c = self._lstm(gate, *state)
                state = narrowed(h), c
            elif self._kind == "gru":
                state = (self._gru(gate, state[0], scales),)
            else:
                nonlinearity = torch.tanh if self._kind == "tanh" else torch.relu
                state = (nonlinearity(self._from_hidden.added_to(gate, state[0])),)
            outputs.append(state[0])
        if met is not None and resets is not None:
            met.append(_stacked(hidden, backwards))
            if scales:
                resets.append(_stacked(scales, backwards))
        return _stacked(outputs, backwards), state

    def _gru(self, gate: Tensor, h: Tensor, resets: list[Tensor]) -> Tensor:
        size = h.shape[1]
        hidden = self._from_hidden(h)
        reset, update = torch.sigmoid(gate[:, : 2 * size] + hidden[:, : 2 * size]).chunk(2, 1)
        new = torch.tanh(torch.addcmul(gate[:, 2 * size :], reset, hidden[:, 2 * size :]))
        resets.append(reset.detach())
        return new + update * (h - new)

    def _lstm(self, gate: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gate = self._from_hidden.added_to(gate, h)
        size = c.shape[1]
        enter, forget = torch.sigmoid(gate[:, : 2 * size]).chunk(2, 1)
        c = torch.addcmul(forget * c, enter, torch.tanh(gate[:, 2 * size : 3 * size]))
        return torch.sigmoid(gate[:, 3 * size :]) * torch.tanh(c), c

    def _narrowing(self, gates: Tensor, backwards: bool) -> Callable[[Tensor], Tensor]:
        """An LSTM's projection of its output, ``proj_size``, applied step by step.

        Zeros are added to all its outputs; their gradient is the outputs' gradient.
        """
        projection = self._to_output
        if projection is None:
            return lambda h: h
        if not projection.is_watched:
            return projection
        met: list[Tensor] = []
        zeros = self._tape.watch(
            gates.new_zeros(*gates.shape[:2], projection.size),
            lambda back: projection.note(back, _stacked(met, backwards)),
        )
        additions = iter(_in_order(zeros.unbind(1), backwards))

        def narrowed(h: Tensor) -> Tensor:
            met.append(h.detach())
            return projection.added_to(next(additions), h)

        return narrowed


def _in_order(steps: Sequence[Tensor], backwards: bool) -> Sequence[Tensor]:
    return steps[::-1] if backwards else steps


def _stacked(steps: Sequence[Tensor], backwards: bool) -> Tensor:
    return torch.stack(tuple(_in_order(steps, backwards)), 1)
