"""Linear layers, for inputs of any rank, at each record's own weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.layers.rank_one import RankOneLinear
from plumbline.gradients.outer import Outer
from plumbline.gradients.rounding import RowSquares
from plumbline.gradients.tape import Tape, Weight
from plumbline.gradients.terms import Dense


@handles(F.linear)
def linear(tape: Tape, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """``F.linear`` at each record's own weights, with its gradients captured."""
    return affine(tape, input, weight, bias, transposed=False)


def affine(
    tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool
) -> Tensor | None:
    """``x W^T + b``, or ``x W + b`` when the weight is stored transposed.

    Returns None to use the general rule (for an input that is itself a weight, or a weight that is
    computed from per-record weights).
    """
    known = tape.weights(weight, bias)
    if known is None or not tape.has_records(inputs) or tape.has_records(weight, bias):
        return None
    w, b = tape.weight(weight), tape.weight(bias)
    weight_value = w.value if w else weight
    bias_value = b.value if b else bias
    shape = (*inputs.shape[:-1], weight_value.shape[1 if transposed else 0])
    rows = inputs.reshape(-1, inputs.shape[-1])
    if known[0].offset is None:
        # Keep the graph of one, so that the output has an edge to watch. The weights' own gradients
        # are not requested, so they are not computed.
        matrix, shift = (w.graph, bias_value) if w else (weight, b.graph if b else bias)
        output = F.linear(rows, matrix.T if transposed else matrix, shift)
    else:
        fused = None
        if rows.shape[0] == tape.records and not transposed:
            fused = _rank_one(tape, rows, w, b, bias_value)
        if fused is None:
            fused = _perturbed(_by_record(inputs), weight, bias, tape, transposed)
        output = fused

    def terms(gradient: Tensor) -> None:
        back = gradient.view(tape.records, -1, shape[-1])
        back = back if back.dtype == weight_value.dtype else back.to(weight_value.dtype)
        squares = RowSquares(back)
        if w is not None:
            into = rows.detach().view(tape.records, -1, rows.shape[-1])
            into = into if into.dtype == weight_value.dtype else into.to(weight_value.dtype)
            if transposed:
                w.add(Outer(into, back, right_squares=squares))
            else:
                w.add(Outer(back, into, left_squares=squares))
        if b is not None:
            b.add(Dense.summed(back, (1,), squares))

    output = tape.watch(output, terms, reads=inputs)
    return output if output.shape == shape else output.view(shape)


def _by_record(tensor: Tensor) -> Tensor:
    """``[B, T, d]`` from a tensor ``[B, ..., d]``."""
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1])


def _perturbed(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, tape: Tape, transposed: bool
) -> Tensor:
    """Outputs ``[B, T, out]`` for inputs ``[B, T, in]`` at each record's own weights."""
    w, b = tape.weight(weight), tape.weight(bias)
    value = w.value if w else weight
    if w is None or w.offset is None:
        output = F.linear(inputs, value.T if transposed else value)
    elif w.offset.low_rank and not transposed:
        output = w.offset.applied(F.linear(inputs, value), inputs)
    else:
        own = w.offset.moved(value)
        output = torch.bmm(inputs, (own if transposed else own.transpose(1, 2)).to(inputs.dtype))
    if bias is not None:
        shift = b.value if b else bias
        if b is not None and b.offset is not None:
            shift = b.offset.moved(shift)[:, None, :]
        output = output + shift.to(output.dtype)
    return output


def _rank_one(
    tape: Tape, inputs: Tensor, w: Weight | None, b: Weight | None, bias: Tensor | None
) -> Tensor | None:
    """The fused form, when every record has one position and bias and weight move together."""
    if (
        tape.checked
        or w is None
        or w.offset is None
        or torch.is_autocast_enabled(inputs.device.type)
    ):
        return None
    outer = w.offset.rank_one
    if outer is None:
        return None
    shift = None
    if b is not None and b.offset is not None:
        shift = b.offset.scale_of(outer[0])
        if shift is None:
            return None
    output: Tensor = RankOneLinear.apply(  # type: ignore[no-untyped-call]
        inputs, w.value, bias, *outer, w.offset.scale, shift
    )
    return output
