"""Group and instance normalisation: the batch folded into the channels.

With each record's channels as separate channels, the library's fused kernel computes the same
numbers, and the gradients of the repeated scale and shift are the per-record gradients: no extra
work, and each record may have its own scale for free.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.layers import handles
from plumbline.gradients.layers.scale_shift import own_rows, scale_and_shift
from plumbline.gradients.tape import Tape


@handles(F.group_norm, rewrites=True)
def group_norm(
    tape: Tape,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    """``F.group_norm`` with each record's own scale and shift."""
    known = tape.weight(weight) or tape.weight(bias)
    if known is None or tape.weight(input) is not None:
        return None
    if tape.layout(input, known, leading=1) is None:
        return None
    records = len(input)
    folded = input.reshape(1, -1, *input.shape[2:])
    scale = own_rows(tape, weight, records)
    shift = own_rows(tape, bias, records)
    output = F.group_norm(folded, records * num_groups, scale, shift, eps)
    tape.computed(output)
    return output.view(input.shape)


@handles(F.instance_norm, rewrites=True)
def instance_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """``F.instance_norm``: group normalisation with one group per channel."""
    if not use_input_stats and running_mean is not None and running_var is not None:
        normal = F.instance_norm(input, running_mean, running_var, None, None, False, momentum, eps)
        return scale_and_shift(tape, normal, weight, bias, axis=1)
    if running_mean is not None:
        raise RecordsMixError(
            "An instance normalisation keeps running statistics, which carry one record's values "
            "to later steps. Build it with track_running_stats=False."
        )
    return group_norm(tape, input, input.shape[1], weight, bias, eps)
