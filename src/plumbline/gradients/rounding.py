"""Norms of rows, and by how much float32 may have rounded what they are norms of."""

from __future__ import annotations

import torch
from torch import Tensor


class RowSquares:
    """The squared norm of each row of ``[B, ...]``, computed once for all who ask."""

    def __init__(self, values: Tensor) -> None:
        self._values: Tensor | None = values
        self._squares: Tensor | None = None

    def __call__(self) -> Tensor:
        """The squared norms, ``[B]``."""
        if self._values is not None:
            self._squares = square_rows(self._values)
            self._values = None  # not held any longer than needed
        assert self._squares is not None
        return self._squares


def square_rows(values: Tensor) -> Tensor:
    """Squared norm of each row of ``[B, ...]``, in float64: the square of a tiny norm is there."""
    rows = values.reshape(len(values), values.shape[1:].numel())
    squares: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square_()
    return squares


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the spacing of numbers near one."""
    return torch.finfo(dtype).eps / 2


def product_slack(left: Tensor, right: Tensor, dtype: torch.dtype, overlap: int = 1) -> Tensor:
    """A bound ``[B]`` on the rounding of ``sum_t l_it r_it^T``, as a norm.

    A blocked sum of products carries a few roundings of its terms' size (Higham and Mary, 2019).

    Args:
        left: Squared norms of the ``l_i``, ``[B]``.
        right: Squared norms of the ``r_i``, ``[B]``.
        dtype: In which the sum was formed.
        overlap: How often one ``r`` enters (a convolution's kernel size).
    """
    return (left * right * overlap).sqrt() * (ROUNDINGS * unit_roundoff(dtype))


def sum_slack(squares: RowSquares, positions: int, dtype: torch.dtype) -> Tensor:
    """A bound ``[B]`` on the rounding of ``sum_t d_it``, from the squared norms of the ``d_i``."""
    return (squares() * positions).sqrt() * (ROUNDINGS * unit_roundoff(dtype))


ROUNDINGS = 8.0
"""Roundings of a term's size that a blocked sum is taken to carry; a running sum has up to T."""

SUM_ROUNDINGS = 256.0
"""Roundings of a record's size that the sum over the records is taken to carry when that size stays
in it: those of 256 records that all go one way, or of 65,536 that do not."""


def running_slack(slack: Tensor, positions: int) -> Tensor:
    """The bound on a sum whose every rounding may go the same way, from the blocked sum's."""
    return slack * max(1.0, positions / ROUNDINGS)
