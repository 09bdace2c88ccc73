"""Weights stored input-first: ``x W`` by ``addmm`` or ``@``, as in the Conv1D of transformers.

This is the linear layer with its weight transposed, and so is its gradient: ``sum_t a_it d_it^T``.
GPT-2's Conv1D flattens batch and positions before the product; each record's positions are still
adjacent, which is the tape's flat layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.layers.linear import affine
from plumbline.gradients.tape import Tape


@handles(torch.addmm, Tensor.addmm)
def addmm(
    tape: Tape,
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    **others: Any,
) -> Tensor | None:
    """``torch.addmm(bias, x, weight)``."""
    if beta != 1 or alpha != 1 or others or input.dim() != 1:
        return None
    return affine(tape, mat1, mat2, input, transposed=True)


@handles(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(tape: Tape, input: Tensor, other: Tensor, **others: Any) -> Tensor | None:
    """``x @ weight`` of records and a matrix."""
    if others or other.dim() != 2:
        return None
    return affine(tape, input, other, None, transposed=True)
