"""Embedding tables: a record's gradient has rows only for the tokens it contains.

Rows of equal tokens are summed within the record (a sort and a segmented sum, nothing of the
table's size), so the norm has no cancellation beyond that of the sum itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.kernels import Key, bucket
from plumbline.gradients.layers import handles, refuses
from plumbline.gradients.rounding import square_rows, unit_roundoff
from plumbline.gradients.summation import float64
from plumbline.gradients.tape import Tape
from plumbline.gradients.terms import Term, grouped_positions, rows_like, scatter_rows


class EmbeddingRows(Term):
    """``g_i = sum_t e(index_it) back_it^T``, from ``index [B, T]`` and ``back [B, T, d]``."""

    def __init__(self, index: Tensor, back: Tensor, table: int) -> None:
        self.index, self.back = index, back
        self.records = index.shape[0]
        self.shape = torch.Size((table, back.shape[2]))
        self._found: tuple[Tensor, Tensor] | None = None

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        index, back = self.index[start:stop], self.back[start:stop]
        if out is None:
            out = back.new_zeros(stop - start, *self.shape)
        else:
            out.zero_()
        return out.scatter_add_(1, index[..., None].expand_as(back), back)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        # Equal tokens of a record first: only its own gradient is as small as its norm says.
        segment, owner = self._segments()
        sums = float64(self.back.new_zeros(len(owner), self.shape[1]))
        sums.index_add_(0, segment.to(sums.device), float64(self.back).flatten(0, 1))
        sums *= float64(weights)[owner.to(sums.device), None]
        tokens = self.index.new_empty(len(owner)).scatter_(0, segment, self.index.flatten())
        total = sums.new_zeros(self.shape)
        return total.index_add_(0, tokens.to(sums.device), sums)

    def dot(self, direction: Tensor) -> Tensor:
        return (F.embedding(self.index, direction) * self.back).sum((1, 2))

    def select(self, index: Tensor) -> EmbeddingRows:
        return EmbeddingRows(self.index[index], self.back[index], self.shape[0])

    def scaled(self, coefficients: Tensor) -> EmbeddingRows:
        return EmbeddingRows(
            self.index, self.back * rows_like(coefficients, self.back), self.shape[0]
        )

    def joined(self, others: Sequence[Term]) -> EmbeddingRows:
        terms = [self, *(other for other in others if isinstance(other, EmbeddingRows))]
        index = torch.cat([term.index for term in terms], 1)
        return EmbeddingRows(index, torch.cat([term.back for term in terms], 1), self.shape[0])

    def pooled(self, index: Tensor, groups: int) -> EmbeddingRows:
        slots, size = grouped_positions(index, groups)
        tokens = scatter_rows(self.index, slots, groups * size)
        back = scatter_rows(self.back, slots, groups * size)  # empty slots add zero to token 0
        return EmbeddingRows(
            tokens.view(groups, -1), back.view(groups, -1, self.shape[1]), self.shape[0]
        )

    def streamed_square_norms(self) -> Tensor:
        segment, owner = self._segments()
        sums = self.back.new_zeros(len(owner), self.shape[1])
        sums.index_add_(0, segment, self.back.flatten(0, 1))
        squares = square_rows(sums)
        return squares.new_zeros(self.records).index_add_(0, owner, squares)

    def slack(self) -> Tensor:
        # A row that n tokens share is a running sum: it may round n times in one direction.
        segment, owner = self._segments()
        sizes = torch.linalg.vector_norm(self.back, dim=2).flatten()
        totals = sizes.new_zeros(len(owner)).index_add_(0, segment, sizes)
        shared = torch.bincount(segment, minlength=len(owner))
        totals *= torch.where(shared > 1, shared, 0)
        squares = sizes.new_zeros(self.records).index_add_(0, owner, totals.square())
        bound: Tensor = squares.sqrt() * unit_roundoff(self.dtype)
        return bound

    def _segments(self) -> tuple[Tensor, Tensor]:
        """The row of each position ``[B * T]`` among all records' rows, and each row's record."""
        if self._found is None:
            tokens, order = self.index.sort(1)
            opens = torch.ones_like(tokens)
            opens[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
            ascending = (opens.flatten().cumsum(0) - 1).view_as(tokens)
            segment = torch.empty_like(ascending).scatter_(1, order, ascending)
            records = torch.arange(self.records, device=tokens.device)
            self._found = segment.flatten(), records.repeat_interleave(opens.sum(1))
        return self._found

    def double(self) -> EmbeddingRows:
        return EmbeddingRows(self.index, self.back.double(), self.shape[0])

    def rows(self, index: Tensor) -> Tensor:
        same = (index[:, :, None] == self.index[:, None, :]).to(self.back.dtype)
        return same @ self.back

    @property
    def keepable(self) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.back.nbytes

    @property
    def key(self) -> Key:
        return ("embedding", self.index.shape[1], *self.shape, bucket(self.records), self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self.back.dtype

    @property
    def device(self) -> torch.device:
        return self.back.device


@refuses(F.embedding, F.embedding_bag)
def refuse_mixing(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    *options: Any,
    max_norm: float | None = None,
    scale_grad_by_freq: bool = False,
    **others: Any,
) -> None:
    """Refuses the options with which one record's tokens reach another's, or a later step."""
    # options: padding_idx or offsets, max_norm, norm_type, scale_grad_by_freq, ...
    max_norm = options[1] if len(options) > 1 else max_norm
    scale_grad_by_freq = scale_grad_by_freq or any(options[3:4])
    if max_norm is None and not scale_grad_by_freq:
        return
    known = tape.weight(weight)
    raise RecordsMixError(
        f"The embedding{f' {known.name!r}' if known else ''} uses "
        f"{'max_norm' if max_norm is not None else 'scale_grad_by_freq'}, which lets one "
        "record's tokens change another record's gradient. Build it without that option."
    )


@handles(F.embedding, in_any_capture=True)
def embedding(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    """``F.embedding`` at each record's own table, with its gradients captured."""
    table = tape.weight(weight)
    if table is None or not tape.has_records(input):
        return None
    tokens = input.flatten(1) if input.dim() > 1 else input[:, None]
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    shape = (*input.shape, weight.shape[1])
    if tape.weights(weight) is None:
        return _own_rows(table.per_record(), tokens, padding).view(shape)
    output = F.embedding(input, table.value, padding_idx)
    if table.offset is not None:
        output = output + table.offset.rows(tokens).view(shape).to(output.dtype)

    def terms(gradient: Tensor) -> None:
        back = gradient.reshape(*tokens.shape, -1).to(table.value.dtype)
        if padding is not None:
            back = back.masked_fill((tokens == padding)[..., None], 0)
        table.add(EmbeddingRows(tokens, back, table.value.shape[0]))

    return tape.watch(output, terms, reads=input)


def _own_rows(tables: Tensor, tokens: Tensor, padding: int | None) -> Tensor:
    """EmbeddingRows ``tokens [B, T]`` of each record's own table ``[B, V, d]``."""
    rows = tables[torch.arange(len(tables), device=tokens.device)[:, None], tokens]
    if padding is None:
        return rows
    return torch.where((tokens == padding)[..., None], rows.detach(), rows)
