"""Linear layers: ``g_i = sum_t d_it a_it^T`` for inputs of any rank.

With one position per record (an MLP) the gradient is never needed: ``|g_i| = |d_i| |a_i|``. With
more positions the candidates are a batched product, kept or built a few records at a time, and the
Gram form ``sum_ts (a_t . a_s)(d_t . d_s)``, which is computed in float64 because it cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.kernels import Key, bucket
from plumbline.gradients.layers import handles
from plumbline.gradients.layers.rank_one import RankOneLinear
from plumbline.gradients.rounding import RowSquares, product_slack
from plumbline.gradients.summation import float64, summed_positions
from plumbline.gradients.tape import Tape, Weight
from plumbline.gradients.terms import (
    CHUNK_BYTES,
    Dense,
    Term,
    grouped_positions,
    rows_like,
    scatter_rows,
)

_MANY = 16
"""From this many positions on, each record's gradient by itself is cheaper than float64."""


class Outer(Term):
    """``g_i = sum_t left_it right_it^T``, from ``left [B, T, m]`` and ``right [B, T, n]``."""

    def __init__(
        self,
        left: Tensor,
        right: Tensor,
        left_squares: RowSquares | None = None,
        right_squares: RowSquares | None = None,
    ) -> None:
        self.left, self.right = left, right
        self._left_squares = left_squares or RowSquares(left)
        self._right_squares = right_squares or RowSquares(right)
        self.records, self._positions = left.shape[:2]
        self.shape = torch.Size((left.shape[2], right.shape[2]))

    @property
    def positions(self) -> int:
        return self._positions

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        left, right = self.left[start:stop].transpose(1, 2), self.right[start:stop]
        return torch.bmm(left, right) if out is None else torch.bmm(left, right, out=out)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.positions >= _MANY:
            return super().weighted_sum(weights)
        # Scale the smaller side: one pass over memory less.
        left, right = self.left, self.right
        if left.shape[2] <= right.shape[2]:
            left = left * rows_like(weights, left)
        else:
            right = right * rows_like(weights, right)
        if self.positions == 1:
            return float64(left[:, 0]).T @ float64(right[:, 0])
        return summed_positions(left, right)

    def dot(self, direction: Tensor) -> Tensor:
        return ((self.left @ direction) * self.right).sum((1, 2))

    def select(self, index: Tensor) -> Outer:
        return Outer(self.left[index], self.right[index])

    def scaled(self, coefficients: Tensor) -> Outer:
        return Outer(self.left * rows_like(coefficients, self.left), self.right)

    def joined(self, others: Sequence[Term]) -> Outer:
        terms = [self, *(other for other in others if isinstance(other, Outer))]
        return Outer(
            torch.cat([term.left for term in terms], 1),
            torch.cat([term.right for term in terms], 1),
        )

    def pooled(self, index: Tensor, groups: int) -> Outer:
        slots, size = grouped_positions(index, groups)
        left = scatter_rows(self.left, slots, groups * size)
        right = scatter_rows(self.right, slots, groups * size)
        positions = size * self.positions
        return Outer(left.view(groups, positions, -1), right.view(groups, positions, -1))

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        if self.positions == 1:
            return {"product": self._product_square_norms}
        return {"stream": self.streamed_square_norms, "gram": self._gram_square_norms}

    def slack(self) -> Tensor | None:
        if self.positions == 1:
            return None
        return product_slack(self._left_squares(), self._right_squares(), self.dtype)

    def sizes(self) -> Tensor:
        return (self._left_squares() * self._right_squares()).sqrt()

    def double(self) -> Outer:
        return Outer(self.left.double(), self.right.double())

    def rows(self, index: Tensor) -> Tensor:
        positions = index[:, None, :].expand(-1, self.positions, -1)
        return self.left.gather(2, positions).transpose(1, 2) @ self.right

    @property
    def low_rank(self) -> bool:
        m, n = self.shape
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
        return self.positions > 1

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

    def _gram_square_norms(self) -> Tensor:
        size = max(1, CHUNK_BYTES // (16 * self.positions**2))
        parts = []
        for start in range(0, self.records, size):
            left = self.left[start : start + size].double()
            right = self.right[start : start + size].double()
            gram = (left @ left.transpose(1, 2)).mul_(right @ right.transpose(1, 2))
            parts.append(gram.sum((1, 2)).clamp_(min=0))
        return torch.cat(parts) if parts else self._left_squares()


@handles(F.linear)
def linear(tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """``F.linear`` at each record's own weights, with its gradients captured."""
    return affine(tape, inputs, weight, bias, transposed=False)


def affine(
    tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool
) -> Tensor | None:
    """``x W^T + b``, or ``x W + b`` when the weight is stored transposed.

    Returns None to use the general rule (for an input that is itself a weight, or a weight that is
    computed from per-record weights).
    """
    known = tape.weights(weight, bias)
    if known is None or not tape.has_records(inputs) or tape.has_records(weight, bias):
        return None
    w, b = tape.weight(weight), tape.weight(bias)
    weight_value = w.value if w else weight
    bias_value = b.value if b else bias
    shape = (*inputs.shape[:-1], weight_value.shape[1 if transposed else 0])
    rows = inputs.reshape(-1, inputs.shape[-1])
    if known[0].offset is None:
        # Keep the graph of one, so that the output has an edge to watch. The weights' own gradients
        # are not requested, so they are not computed.
        matrix, shift = (w.graph, bias_value) if w else (weight, b.graph if b else bias)
        output = F.linear(rows, matrix.T if transposed else matrix, shift)
    else:
        fused = None
        if rows.shape[0] == tape.records and not transposed:
            fused = _rank_one(tape, rows, w, b, bias_value)
        if fused is None:
            fused = _perturbed(_by_record(inputs), weight, bias, tape, transposed)
        output = fused

    def terms(gradient: Tensor) -> None:
        back = gradient.view(tape.records, -1, shape[-1])
        back = back if back.dtype == weight_value.dtype else back.to(weight_value.dtype)
        squares = RowSquares(back)
        if w is not None:
            into = rows.detach().view(tape.records, -1, rows.shape[-1])
            into = into if into.dtype == weight_value.dtype else into.to(weight_value.dtype)
            if transposed:
                w.add(Outer(into, back, right_squares=squares))
            else:
                w.add(Outer(back, into, left_squares=squares))
        if b is not None:
            b.add(Dense.summed(back, (1,), squares))

    output = tape.watch(output, terms, reads=inputs)
    return output if output.shape == shape else output.view(shape)


def _by_record(tensor: Tensor) -> Tensor:
    """``[B, T, d]`` from a tensor ``[B, ..., d]``."""
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1])


def _perturbed(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, tape: Tape, transposed: bool
) -> Tensor:
    """Outputs ``[B, T, out]`` for inputs ``[B, T, in]`` at each record's own weights."""
    w, b = tape.weight(weight), tape.weight(bias)
    value = w.value if w else weight
    if w is None or w.offset is None:
        output = F.linear(inputs, value.T if transposed else value)
    elif w.offset.low_rank and not transposed:
        output = w.offset.applied(F.linear(inputs, value), inputs)
    else:
        own = w.offset.moved(value)
        output = torch.bmm(inputs, (own if transposed else own.transpose(1, 2)).to(inputs.dtype))
    if bias is not None:
        shift = b.value if b else bias
        if b is not None and b.offset is not None:
            shift = b.offset.moved(shift)[:, None, :]
        output = output + shift.to(output.dtype)
    return output


def _rank_one(
    tape: Tape, inputs: Tensor, w: Weight | None, b: Weight | None, bias: Tensor | None
) -> Tensor | None:
    """The fused form, when every record has one position and bias and weight move together."""
    if (
        tape.checked
        or w is None
        or w.offset is None
        or torch.is_autocast_enabled(inputs.device.type)
    ):
        return None
    outer = w.offset.rank_one
    if outer is None:
        return None
    shift = None
    if b is not None and b.offset is not None:
        shift = b.offset.scale_of(outer[0])
        if shift is None:
            return None
    output: Tensor = RankOneLinear.apply(  # type: ignore[no-untyped-call]
        inputs, w.value, bias, *outer, w.offset.scale, shift
    )
    return output
