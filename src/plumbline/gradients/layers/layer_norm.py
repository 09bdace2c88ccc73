"""Layer and RMS normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.layers.scale_shift import scale_and_shift
from plumbline.gradients.rounding import RowSquares
from plumbline.gradients.tape import Tape
from plumbline.gradients.terms import Dense


@handles(F.layer_norm, in_any_capture=True)
def layer_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    """``F.layer_norm`` with each record's own scale and shift."""
    return _normalise(
        tape, input, len(normalized_shape), weight, bias,
        plain=lambda rows: F.layer_norm(rows, normalized_shape, None, None, eps),
        fused=lambda scale, shift: F.layer_norm(input, normalized_shape, scale, shift, eps),
    )  # fmt: skip


@handles(F.rms_norm, in_any_capture=True)
def rms_norm(
    tape: Tape,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    """``F.rms_norm`` with each record's own scale."""
    return _normalise(
        tape, input, len(normalized_shape), weight, None,
        plain=lambda rows: F.rms_norm(rows, normalized_shape, None, eps),
        fused=lambda scale, shift: F.rms_norm(input, normalized_shape, scale, eps),
    )  # fmt: skip


def _normalise(
    tape: Tape,
    inputs: Tensor,
    dims: int,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    plain: Callable[[Tensor], Tensor],
    fused: Callable[[Tensor | None, Tensor | None], Tensor],
) -> Tensor | None:
    if not tape.has_records(inputs) or tape.has_records(weight, bias):
        return None
    known = tape.weights(weight, bias)
    axis = inputs.dim() - dims
    if known is None or any(one.offset is not None for one in known):
        return scale_and_shift(tape, plain(inputs), weight, bias, axis)
    w, b = tape.weight(weight), tape.weight(bias)
    output = fused(w.value if w else weight, b.value if b else bias)

    def terms(gradient: Tensor) -> None:
        back = _by_record(gradient, axis)
        value = known[0].value
        if w is not None:
            # In the parameter's precision, like torch: this runs outside the model's autocast.
            normal = plain(inputs.to(value.dtype))
            w.add(_summed(back * _by_record(normal, axis), value))
        if b is not None:
            b.add(_summed(back, value))

    return tape.watch(output, terms, reads=inputs)


def _by_record(tensor: Tensor, axis: int) -> Tensor:
    """``[B, T, features]``, the features from ``axis`` on."""
    return tensor.flatten(axis).reshape(len(tensor), -1, tensor.shape[axis:].numel())


def _summed(rows: Tensor, value: Tensor) -> Dense:
    rows = rows.to(value.dtype).reshape(*rows.shape[:2], *value.shape)
    return Dense.summed(rows, (1,), RowSquares(rows))
