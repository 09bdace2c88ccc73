"""The scale and shift at the end of every normalisation layer, with each record's own values."""

from __future__ import annotations

from torch import Tensor

from plumbline.gradients.tape import Tape


def scale_and_shift(
    tape: Tape, normal: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int
) -> Tensor:
    """``normal * weight + bias`` over the dimensions from ``axis`` on, or the one at ``axis``.

    Args:
        tape: The capture.
        normal: Normalised records, ``[B, ...]``.
        weight: Scale, broadcast from ``axis``; None for one.
        bias: Shift; None for zero.
        axis: The dimension of ``normal`` at which weight and bias begin.
    """
    tape.computed(normal)
    output = normal
    for parameter, multiply in ((weight, True), (bias, False)):
        if parameter is None:
            continue
        own = tape.weight(parameter)
        values = own.per_record() if own else parameter[None]
        trailing = normal.dim() - axis - parameter.dim()
        values = values.reshape(len(values), *(1,) * (axis - 1), *parameter.shape, *(1,) * trailing)
        output = output * values if multiply else output + values
    return output.to(normal.dtype)


def own_rows(tape: Tape, parameter: Tensor | None) -> Tensor | None:
    """Each record's channels of a scale or shift, one after the other, ``[B * channels]``."""
    if parameter is None:
        return None
    own = tape.weight(parameter)
    values = own.per_record() if own else parameter.expand(tape.records, -1)
    return values.reshape(-1)
