"""Norms of rows, and bounds on the float32 rounding of what they are norms of."""

from __future__ import annotations

import torch
from torch import Tensor


class RowSquares:
    """The squared norm of each row of ``[B, ...]``, computed once."""

    def __init__(self, values: Tensor) -> None:
        self._values: Tensor | None = values
        self._squares: Tensor | None = None

    def __call__(self) -> Tensor:
        """The squared norms, ``[B]``."""
        if self._values is not None:
            self._squares = square_rows(self._values)
            self._values = None  # free the memory
        assert self._squares is not None
        return self._squares

    def known(self, squares: Tensor) -> None:
        """Takes the squared norms from whoever has computed them already."""
        self._squares, self._values = squares, None


def square_rows(values: Tensor) -> Tensor:
    """Squared norm of each row of ``[B, ...]``, in float64, so that tiny norms do not vanish.

    What vanishes when tiny numbers are squared in float32 is bounded and added: beside a large
    factor it would count.
    """
    rows = values.reshape(len(values), values.shape[1:].numel())
    squares: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square_()
    return squares if values.dtype == torch.float64 else squares.add_(rows.shape[1] * 2.0**-149)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the spacing of numbers near one."""
    return torch.finfo(dtype).eps / 2


def product_slack(left: Tensor, right: Tensor, dtype: torch.dtype, overlap: int = 1) -> Tensor:
    """A bound ``[B]`` on the rounding of ``sum_t l_it r_it^T``, as a norm.

    A blocked sum of products carries a few roundings of the size of its terms (Higham and Mary,
    2019).

    Args:
        left: Squared norms of the ``l_i``, ``[B]``.
        right: Squared norms of the ``r_i``, ``[B]``.
        dtype: The type in which the sum was formed.
        overlap: How often each ``r`` enters the sum (a convolution's kernel size).
    """
    return (left * right * overlap).sqrt() * (ROUNDINGS * unit_roundoff(dtype))


def sum_slack(squares: RowSquares, positions: int, dtype: torch.dtype) -> Tensor:
    """A bound ``[B]`` on the rounding of ``sum_t d_it``, from the squared norms of the ``d_i``."""
    return (squares() * positions).sqrt() * (ROUNDINGS * unit_roundoff(dtype))


ROUNDINGS = 8.0
"""How many roundings of a term's size a blocked sum may carry; a running sum has up to T."""

SUM_ROUNDINGS = 256.0
"""How many roundings of a record's size the sum over records may carry while that size stays in it:
those of 256 records that all go in one direction, or of 65,536 that do not."""


def running_slack(slack: Tensor, positions: int) -> Tensor:
    """The bound on a sum whose roundings may all have one sign, from the blocked sum's bound."""
    return slack * max(1.0, positions / ROUNDINGS)
