"""A linear layer whose weights move by one outer product per record, in two passes over memory.

``y_i = (W + s_i d_i a_i^T) x_i + b = W x_i + b + s_i (a_i . x_i) d_i``. With ordinary operations,
autograd would create three times as many temporaries.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class RankOneLinear(torch.autograd.Function):
    """Outputs ``[B, m]`` of inputs ``[B, n]`` at ``W + scale_i left_i right_i^T``.

    ``shift`` (``[B]``, or None) moves the bias along ``left`` as well, by ``shift_i left_i``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        left: Tensor,
        right: Tensor,
        scale: Tensor,
        shift: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(weight, left, right, scale)
        along = torch.linalg.vecdot(inputs, right).mul_(scale)
        if shift is not None:
            along += shift
        return F.linear(inputs, weight, bias).addcmul_(along[:, None], left)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad[0]:
            return (None,) * 7
        (gradient,) = gradients
        weight, left, right, scale = ctx.saved_tensors
        along = torch.linalg.vecdot(gradient, left).mul_(scale)
        return (gradient @ weight).addcmul_(along[:, None], right), *(None,) * 6
