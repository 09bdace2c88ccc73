"""Layer and RMS normalisation, and batch normalisation with fixed statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.layers import handles
from plumbline.gradients.layers.scale_shift import scale_and_shift
from plumbline.gradients.rounding import RowSquares
from plumbline.gradients.tape import Tape
from plumbline.gradients.terms import Dense


@handles(F.layer_norm, rewrites=True)
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


@handles(F.rms_norm, rewrites=True)
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


@handles(F.batch_norm, rewrites=True)
def batch_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """``F.batch_norm`` in evaluation mode; in training mode it mixes records and is refused."""
    if training:
        known = tape.weight(weight) or tape.weight(bias)
        raise RecordsMixError(
            f"The batch normalisation with the parameter '{known.name if known else '?'}' is in "
            "training mode, where every record's output depends on the whole batch. Use GroupNorm, "
            "or put the layer in evaluation mode."
        )
    normal = F.batch_norm(input, running_mean, running_var, None, None, False, momentum, eps)
    return scale_and_shift(tape, normal, weight, bias, axis=1)


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
    known = tape.weights(weight, bias)
    axis = inputs.dim() - dims
    shared = known is not None and all(one.offset is None for one in known)
    if not shared or known is None or tape.weight(inputs) is not None:
        if tape.weight(inputs) is not None:
            return None
        return scale_and_shift(tape, plain(inputs), weight, bias, axis)
    layout = tape.layout(inputs, known[0], leading=axis)
    if layout is None:
        return None
    w, b = tape.weight(weight), tape.weight(bias)
    output = fused(w.value if w else weight, b.value if b else bias)

    def terms(gradient: Tensor) -> None:
        back = layout.to_records(gradient.flatten(axis))
        value = known[0].value
        if w is not None:
            # In the parameter's precision, like torch: this runs outside the model's autocast.
            normal = plain(inputs.to(value.dtype))
            w.add(_summed(back * layout.to_records(normal.flatten(axis)), value))
        if b is not None:
            b.add(_summed(back, value))

    return tape.watch(output, terms, reads=inputs)


def _summed(rows: Tensor, value: Tensor) -> Dense:
    rows = rows.to(value.dtype).reshape(*rows.shape[:2], *value.shape)
    return Dense.summed(rows, (1,), RowSquares(rows))
