"""Group and instance normalisation: the batch folded into the channels.

With each record's channels as separate channels, the library's fused kernel computes the same
numbers, and the gradients of the repeated scale and shift are the per-record gradients: no extra
work, and each record may have its own scale for free.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.layers import handles, refuses
from plumbline.gradients.layers.scale_shift import own_rows
from plumbline.gradients.tape import Tape


@handles(F.group_norm, in_any_capture=True)
def group_norm(
    tape: Tape,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    """``F.group_norm`` with each record's own scale and shift."""
    if not tape.has_records(input) or tape.has_records(weight, bias) or input.shape[1] != 1:
        return None  # [B, N, C, ...]: the model's own batch is usually one
    folded = input.reshape(1, -1, *input.shape[3:])
    scale = own_rows(tape, weight)
    shift = own_rows(tape, bias)
    output = F.group_norm(folded, tape.records * num_groups, scale, shift, eps)
    tape.computed(output)
    return output.view(input.shape)


@refuses(F.instance_norm)
def refuse_running_statistics(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> None:
    """Refuses an instance normalisation that notes the records' statistics."""
    if use_input_stats and running_mean is not None:
        raise RecordsMixError(
            "An instance normalisation keeps running statistics, which carry one record's values "
            "to later steps. Build it with track_running_stats=False."
        )


@handles(F.instance_norm, in_any_capture=True)
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
        return None  # fixed statistics
    return group_norm(tape, input, input.shape[2], weight, bias, eps)
