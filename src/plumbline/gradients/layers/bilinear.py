"""Bilinear layers: a linear layer on the products of the two inputs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.tape import Tape


@handles(F.bilinear, rewrites=True)
def bilinear(
    tape: Tape, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor | None:
    """``F.bilinear``: ``x_1^T W_o x_2 + b_o`` for every output o."""
    if tape.weight(input1) is not None or tape.weight(input2) is not None:
        return None
    products = (input1[..., :, None] * input2[..., None, :]).flatten(-2)
    return F.linear(products, weight.flatten(1), bias)
