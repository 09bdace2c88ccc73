"""``Outer``: gradients that are sums of outer products, ``g_i = sum_t left_it right_it^T``.

With one position per record (an MLP) the gradient is never needed: ``|g_i| = |left_i| |right_i|``.
With more positions the candidates are a batched product, kept or built a few records at a time, and
the Gram form ``sum_ts (left_t . left_s)(right_t . right_s)``, in float64 because it cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from plumbline.compiled import Together, worth_loading
from plumbline.gradients.kernels import KERNELS, Key, bucket
from plumbline.gradients.rounding import RowSquares, product_slack
from plumbline.gradients.summation import RecordSums, float64, summed_positions, times
from plumbline.gradients.terms import CHUNK_BYTES, Term, grouped_positions, rows_like, scatter_rows

_WORTH = 1 << 22
"""Multiplications from which on a compiled loop pays."""

_WORTH_ONE = 1 << 25
"""The same for one position, where the library's product is nearly as fast."""

_WORTH_BUCKETS = 1 << 16
"""Numbers of a matrix from which on sums in buckets pay for being loaded."""

_MANY = 64
"""From this many positions on, the library's batched product is faster than a compiled loop."""

_MANY_ELSEWHERE = 16
"""From this many on it is faster than products in float64, where nothing is compiled."""


class Outer(Term):
    """``g_i = sum_t left_it right_it^T``, from ``left [B, T, m]`` and ``right [B, T, n]``.

    The parameter's shape is ``[m, n]``, or another with as many numbers in this order.
    """

    def __init__(
        self,
        left: Tensor,
        right: Tensor,
        left_squares: RowSquares | None = None,
        right_squares: RowSquares | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        self.left, self.right = left, right
        self._left_squares = left_squares or RowSquares(left)
        self._right_squares = right_squares or RowSquares(right)
        self.records, self._positions = left.shape[:2]
        self._matrix = left.shape[2], right.shape[2]
        self.shape = torch.Size(shape or self._matrix)
        self._gram: Tensor | None = None  # squared norms ahead of time

    @property
    def positions(self) -> int:
        return self._positions

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        left, right = self.left[start:stop].transpose(1, 2), self.right[start:stop]
        into = None if out is None else out.view(stop - start, *self._matrix)
        return torch.bmm(left, right, out=into).view(stop - start, *self.shape)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.positions == 1:
            if not self._compiles:
                return self._product_sum(weights)
            kernels = {
                "library": partial(self._product_sum, weights),
                "compiled": partial(self._compiled_sum, weights),
            }
            return KERNELS.run(("sum", *self.key), kernels)
        if self._compiles and self.positions < _MANY:
            return self._compiled_sum(weights)
        if self.positions >= _MANY_ELSEWHERE:
            return super().weighted_sum(weights)
        return summed_positions(self.left, self.right, weights).view(self.shape)

    def begin_sum(self, weights: Tensor, together: RecordSums) -> Callable[[], Tensor]:
        if self.positions > 1:
            compiles = self._compiles and self.positions < _MANY
        elif together.buckets is not None and self._worth_buckets:
            compiles = True
        elif self._compiles:  # which way is faster is measured when the first sum is asked for
            compiles = KERNELS.chosen(("sum", *self.key)) == "compiled"
        else:
            compiles = together.worth and self._can_compile
        begin = self._begin_compiled if compiles else super().begin_sum
        return begin(weights, together)

    @property
    def looped(self) -> int:
        if self.positions > 1 or not self._can_compile or not worth_loading():
            return 0
        # Eight products in registers take about as long as one number from memory.
        return self.left.numel() * self._matrix[1] // 8

    def dot(self, direction: Tensor) -> Tensor:
        return ((self.left @ direction.reshape(self._matrix)) * self.right).sum((1, 2))

    def select(self, index: Tensor) -> Outer:
        return self._like(self.left[index], self.right[index])

    def scaled(self, coefficients: Tensor) -> Outer:
        return self._like(self.left * rows_like(coefficients, self.left), self.right)

    def joined(self, others: Sequence[Term]) -> Outer:
        terms = [self, *(other for other in others if isinstance(other, Outer))]
        return self._like(
            torch.cat([term.left for term in terms], 1),
            torch.cat([term.right for term in terms], 1),
        )

    def pooled(self, index: Tensor, groups: int) -> Outer:
        slots, size = grouped_positions(index, groups)
        left = scatter_rows(self.left, slots, groups * size)
        right = scatter_rows(self.right, slots, groups * size)
        positions = size * self.positions
        return self._like(left.view(groups, positions, -1), right.view(groups, positions, -1))

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        if self.positions == 1:
            return {"product": self._product_square_norms}
        kernels = {"gram": self._gram_square_norms, "stream": self.streamed_square_norms}
        return kernels if self.low_rank else dict(reversed(kernels.items()))

    def slack(self) -> Tensor | None:
        if self.positions == 1:
            return None
        return product_slack(self._left_squares(), self._right_squares(), self.dtype)

    def sizes(self) -> Tensor:
        return (self._left_squares() * self._right_squares()).sqrt()

    def double(self) -> Outer:
        return self._like(self.left.double(), self.right.double())

    def rows(self, index: Tensor) -> Tensor:
        positions = index[:, None, :].expand(-1, self.positions, -1)
        return self.left.gather(2, positions).transpose(1, 2) @ self.right

    @property
    def factors(self) -> tuple[Tensor, Tensor] | None:
        return self.left, self.right

    @property
    def low_rank(self) -> bool:
        m, n = self._matrix
        return self.positions * (m + n) <= m * n

    def applied(self, base: Tensor, inputs: Tensor, scale: Tensor) -> Tensor:
        if self.positions == 1:
            along = (inputs * self.right).sum(2, keepdim=True) * rows_like(scale, inputs)
            return torch.addcmul(base, along, self.left)
        along = torch.bmm(inputs, self.right.transpose(1, 2)) * rows_like(scale, inputs)
        return torch.baddbmm(base, along, self.left)

    @property
    def rank_one(self) -> tuple[Tensor, Tensor] | None:
        return (self.left[:, 0], self.right[:, 0]) if self.positions == 1 else None

    @property
    def keepable(self) -> bool:
        # With few positions, compiled loops are faster twice than memory is once. They run for all
        # parameters together, which a measurement of one of them does not show.
        m, n = self._matrix
        few = self._compiles and 3 * self.positions * (m + n) <= m * n
        return self.positions > 1 and not few

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes

    @property
    def key(self) -> Key:
        return ("outer", *self.left.shape[1:], self.right.shape[2], bucket(self.records),
                self.dtype, self.device.type)  # fmt: skip

    @property
    def dtype(self) -> torch.dtype:
        return self.left.dtype

    @property
    def device(self) -> torch.device:
        return self.left.device

    def _product_square_norms(self) -> Tensor:
        return self._left_squares() * self._right_squares()

    def _product_sum(self, weights: Tensor) -> Tensor:
        """The sum of rank-one gradients, by the library's product in float64."""
        left, right = self.left[:, 0], self.right[:, 0]
        if left.shape[1] <= right.shape[1]:  # scale the smaller side
            return (times(left, weights).T @ float64(right)).view(self.shape)
        return (float64(left).T @ times(right, weights)).view(self.shape)

    def _compiled_sum(self, weights: Tensor) -> Tensor:
        together = RecordSums()
        finish = self._begin_compiled(float64(weights), together)
        together.run()
        return finish()

    def _begin_compiled(self, weights: Tensor, together: RecordSums) -> Callable[[], Tensor]:
        from plumbline.gradients import outer_loops  # numba, which takes time to import

        total = weights.new_zeros(self._matrix)
        if self.positions == 1:
            left, right = self.left[:, 0], self.right[:, 0]
            squares = self._left_squares() if self._worth_buckets else None
            outer_loops.add_rank_one(left, right, weights, total, together, squares)
        else:
            outer_loops.add_outer(self.left, self.right, weights, total, together)
        return partial(total.view, self.shape)

    def _like(self, left: Tensor, right: Tensor) -> Outer:
        return Outer(left, right, shape=self.shape)

    @property
    def _compiles(self) -> bool:
        """Whether compiled loops pay for this parameter alone, and there are any."""
        least = _WORTH if self.positions > 1 else _WORTH_ONE
        return self.left.numel() * self._matrix[1] >= least and self._can_compile

    @property
    def _worth_buckets(self) -> bool:
        """Whether it is added in buckets where there are any: however many records there are."""
        m, n = self._matrix
        return self._can_compile and (m * n >= _WORTH_BUCKETS or worth_loading())

    @property
    def _can_compile(self) -> bool:
        return self.dtype == torch.float32 and self.device.type == "cpu"

    def begin_gram(self, together: Together) -> None:
        """Notes the loop of the Gram norms, if it is compiled."""
        if self._compiles:
            from plumbline.gradients.outer_loops import gram_squares

            self._gram = gram_squares(self.left, self.right, together)

    def _gram_square_norms(self) -> Tensor:
        if self._compiles:
            if self._gram is None:
                together = Together()
                self.begin_gram(together)
                together.run()
            assert self._gram is not None
            squares, lefts, rights = self._gram.unbind()
            self._left_squares.known(lefts)
            self._right_squares.known(rights)
            self._gram = None
            return squares
        size = max(1, CHUNK_BYTES // (16 * self.positions**2))
        parts = []
        for start in range(0, self.records, size):
            left = self.left[start : start + size].double()
            right = self.right[start : start + size].double()
            gram = (left @ left.transpose(1, 2)).mul_(right @ right.transpose(1, 2))
            parts.append(gram.sum((1, 2)).clamp_(min=0))
        return torch.cat(parts) if parts else self._left_squares()
