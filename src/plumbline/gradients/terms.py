"""``Term``: the per-record gradients of one parameter, as an object to compute with.

A term stands for the gradients ``g_1 .. g_B`` of one parameter without necessarily storing them.
``Dense`` does store them; each layer file has its own term that stores the layer's inputs and
output gradients instead; ``compound.py`` has terms built on terms.

Guarantee: ``square_norms`` is never below the squared norm of what ``weighted_sum`` adds up, beyond
2e-6 relative, for any record. Rounding is bounded by ``slack`` and added.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from plumbline.gradients.kernels import Key, bucket
from plumbline.gradients.rounding import RowSquares, running_slack, square_rows, sum_slack
from plumbline.gradients.summation import (
    RecordSums,
    begin_rows,
    memory_order,
    ranges,
    summed_rows,
)

CHUNK_BYTES = 1 << 21
"""Per-record temporaries are built a few records at a time, to fit in a core's cache."""


class Term(ABC):
    """The gradients of one parameter for ``records`` records.

    Attributes:
        records: The number of records, B.
        shape: The parameter's shape.
    """

    records: int
    shape: torch.Size

    @abstractmethod
    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Gradients of records ``start .. stop - 1``, ``[stop - start, *shape]``."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``sum_i weights_i g_i``, of the parameter's shape, in float64.

        The rounding is bounded in ``summation.py``: each record's own gradient is complete before
        it is added to another's, in float64.

        Args:
            weights: ``[B]``, all finite.
        """
        return summed_rows(self.dense, weights, self.shape, self.at_once)

    def begin_sum(self, weights: Tensor, together: RecordSums) -> Callable[[], Tensor]:
        """Notes what ``weighted_sum`` does in compiled loops; the result is there once they ran.

        Args:
            weights: ``[B]``, float64 where the device has it.
            together: Where to note them; what is not such a loop is done when the result is asked.
        """
        return partial(self.weighted_sum, weights)

    @property
    def looped(self) -> int:
        """How many numbers a compiled loop of ``begin_sum`` reads; 0 if there is none."""
        return 0

    @abstractmethod
    def select(self, index: Tensor) -> Term:
        """The term whose record r is this term's record ``index_r``."""

    @abstractmethod
    def scaled(self, coefficients: Tensor) -> Term:
        """The term of ``coefficients_i g_i``; ``coefficients`` is ``[B]``."""

    @abstractmethod
    def joined(self, others: Sequence[Term]) -> Term:
        """The sum with terms of the same class and shape, record by record."""

    @abstractmethod
    def pooled(self, index: Tensor, groups: int) -> Term:
        """The term of the ``groups`` sums of the records with the same ``index``."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that the term holds now."""

    @property
    @abstractmethod
    def key(self) -> Key:
        """What a measured kernel choice depends on."""

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        """Ways to get the squared norms ``[B]`` without keeping the gradients."""
        return {"stream": self.streamed_square_norms}

    def slack(self) -> Tensor | None:
        """A bound ``[B]`` on the rounding of each record's gradient norm, if it is not tiny."""
        return None

    def sum_slack(self) -> Tensor | None:
        """The same for its share of ``weighted_sum``, whose roundings may all have one sign."""
        slack = self.slack()
        return None if slack is None else running_slack(slack, self.positions)

    def sizes(self) -> Tensor:
        """The norm of each record's gradient, ``[B]``, or a cheap upper bound."""
        return next(iter(self.norm_kernels().values()))().sqrt()

    @property
    def positions(self) -> int:
        """How many products or rows a gradient sums."""
        return 1

    @property
    def keepable(self) -> bool:
        """Whether keeping the dense gradients can be cheaper than computing them twice."""
        return True

    @property
    def dense_nbytes(self) -> int:
        """The memory that the dense gradients would take."""
        return self.records * self.shape.numel() * self.dtype.itemsize

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The gradients' floating-point type."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the gradients."""

    def double(self) -> Term | None:
        """The same term in float64, for records whose sums cancel; None when that cannot help."""
        return None

    @property
    def at_once(self) -> int:
        """How many records' dense gradients fit together in a core's cache."""
        return max(1, CHUNK_BYTES // max(1, self.shape.numel() * self.dtype.itemsize))

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of records whose dense gradients fit together in a core's cache."""
        return ranges(0, self.records, self.at_once)

    def with_squares(
        self, start: int, stop: int, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``dense``, and the squared norms of its rows, ``[stop - start]``."""
        rows = self.dense(start, stop, out)
        return rows, square_rows(rows)

    def kept(self) -> tuple[Tensor, Tensor]:
        """The dense gradients of all records, to be kept, and their squared norms."""
        values = torch.empty((self.records, *self.shape), dtype=self.dtype, device=self.device)
        squares = torch.empty(self.records, dtype=torch.float64, device=self.device)
        for start, stop in self.chunks():
            rows, squares[start:stop] = self.with_squares(start, stop, values[start:stop])
            if rows.data_ptr() != values[start:stop].data_ptr():
                values[start:stop] = rows
        return values, squares

    def streamed_square_norms(self) -> Tensor:
        """Squared norms ``[B]`` from dense gradients, built and dropped a few records at a time."""
        parts = [self.with_squares(start, stop)[1] for start, stop in self.chunks()]
        return (
            torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=self.device)
        )

    def dot(self, direction: Tensor) -> Tensor:
        """``<g_i, direction>`` for every record, ``[B]``."""
        flat = direction.reshape(-1)
        parts = [self.dense(a, b).reshape(b - a, flat.numel()) @ flat for a, b in self.chunks()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=self.dtype, device=self.device)

    def rows(self, index: Tensor) -> Tensor:
        """For a matrix-shaped parameter, rows ``index`` (``[B, T]``) of each record's gradient."""
        return self.all()[torch.arange(self.records, device=index.device)[:, None], index]

    @property
    def rank_one(self) -> tuple[Tensor, Tensor] | None:
        """``left [B, m]`` and ``right [B, n]`` when ``g_i = left_i right_i^T``."""
        return None

    @property
    def factors(self) -> tuple[Tensor, Tensor] | None:
        """``left [B, P, m]`` and ``right [B, P, n]`` when ``g_i = sum_p left_ip right_ip^T``."""
        return None

    @property
    def low_rank(self) -> bool:
        """Whether ``applied`` is cheaper than moving each record's weights."""
        return False

    def applied(self, base: Tensor, inputs: Tensor, scale: Tensor) -> Tensor:
        """``base_it + scale_i g_i x_it`` for inputs ``[B, T, n]`` and base ``[B, T, m]``."""
        own = self.all() * rows_like(scale, self.all())
        return torch.baddbmm(base, inputs, own.transpose(1, 2))

    def all(self) -> Tensor:
        """The dense gradients of all records, ``[B, *shape]``."""
        if self.records == 0:
            return torch.empty((0, *self.shape), dtype=self.dtype, device=self.device)
        return self.dense(0, self.records)


class Dense(Term):
    """Gradients stored as they are, ``[B, *shape]``."""

    def __init__(
        self,
        values: Tensor,
        squares: RowSquares | None = None,
        slack: Callable[[], Tensor] | None = None,
    ) -> None:
        self.values = values
        self._squares = squares or RowSquares(values)
        self._slack = slack
        self.records = values.shape[0]
        self.shape = values.shape[1:]

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        rows = self.values[start:stop]
        return rows if out is None else out.copy_(rows)

    @property
    def at_once(self) -> int:
        return max(1, self.records)

    def begin_sum(self, weights: Tensor, together: RecordSums) -> Callable[[], Tensor]:
        return begin_rows(self.values, weights, together)

    @property
    def looped(self) -> int:
        return self.values.numel()

    def dot(self, direction: Tensor) -> Tensor:
        order = memory_order(self.values)
        rows = self.values.permute(0, *order).reshape(self.records, self.shape.numel())
        return rows @ direction.permute([dim - 1 for dim in order]).reshape(-1)

    def select(self, index: Tensor) -> Dense:
        slack = self._slack  # a record's norm is the same, whoever it was taken from beside
        return Dense(self.values[index], slack=None if slack is None else lambda: slack()[index])

    def scaled(self, coefficients: Tensor) -> Dense:
        return Dense(self.values * rows_like(coefficients, self.values))

    def joined(self, others: Sequence[Term]) -> Dense:
        total = self.values
        for other in others:
            total = total + other.all()
        return Dense(total)

    def pooled(self, index: Tensor, groups: int) -> Dense:
        sums = self.values.new_zeros(groups, *self.shape)
        return Dense(sums.index_add_(0, index, self.values))

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        return {"dense": self._squares}

    def slack(self) -> Tensor | None:
        return None if self._slack is None else self._slack()

    @classmethod
    def summed(cls, back: Tensor, dims: tuple[int, ...], squares: RowSquares) -> Dense:
        """The gradients ``sum_t back_it`` of a bias, over ``dims``; ``squares`` are ``back``'s."""
        positions = math.prod([back.shape[dim] for dim in dims])
        if positions == 1:
            return cls(back.squeeze(dims), squares)
        slack = partial(sum_slack, squares, positions, back.dtype)
        return cls(back.sum(dims), slack=slack)

    def double(self) -> Dense:
        return Dense(self.values.double())

    @property
    def keepable(self) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @property
    def key(self) -> Key:
        return ("dense", tuple(self.shape), bucket(self.records), self.dtype, self.device.type)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        return self.values.device


def rows_like(values: Tensor, like: Tensor) -> Tensor:
    """``values`` (``[B]``) shaped to multiply the rows of ``like`` (``[B, ...]``)."""
    values = values if values.dtype == like.dtype else values.to(like.dtype)
    return values.view(-1, *(1,) * (like.dim() - 1))


def grouped_positions(index: Tensor, groups: int) -> tuple[Tensor, int]:
    """A slot for each record so that records of one group lie side by side.

    Returns:
        ``[B]`` slots in ``0 .. groups * size - 1`` and the size of the largest group; slot
        ``group * size + k`` holds the group's k-th record.
    """
    counts = torch.bincount(index, minlength=groups)
    size = int(counts.max()) if index.numel() else 1
    order = torch.argsort(index, stable=True)
    starts = torch.cumsum(counts, 0) - counts
    within = torch.empty_like(index)
    within[order] = torch.arange(len(index), device=index.device) - starts[index[order]]
    return index * size + within, max(size, 1)


def scatter_rows(values: Tensor, slots: Tensor, total: int) -> Tensor:
    """Rows of ``[B, ...]`` put at ``slots`` of a ``[total, ...]`` tensor of zeros."""
    return values.new_zeros(total, *values.shape[1:]).index_copy_(0, slots, values)
