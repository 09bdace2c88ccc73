"""Packed parameters: ``split`` and ``chunk`` of a parameter along its first dimension.

Attention packs its three input projections into one parameter. Each block of rows is a weight of
its own, with the term of the layer that uses it. The parameter's gradient is the blocks' terms side
by side (``Stacked``): the rows are disjoint, so norms and inner products add and nothing is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from plumbline.gradients.compound import Mixed, merge
from plumbline.gradients.kernels import Key
from plumbline.gradients.layers import handles
from plumbline.gradients.outer import Outer
from plumbline.gradients.tape import Tape, Weight
from plumbline.gradients.terms import Dense, Term
from plumbline.gradients.tracked import Tracked

Range = tuple[int, int]
"""Rows ``start .. stop - 1`` of a parameter."""


class Stacked(Term):
    """Gradients in disjoint blocks of rows, each with its own term; zero in between."""

    def __init__(self, blocks: dict[Range, Term], shape: torch.Size) -> None:
        self.blocks = dict(sorted(blocks.items()))
        self.shape = shape
        self._first = next(iter(self.blocks.values()))
        self.records = self._first.records

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty((stop - start, *self.shape), dtype=self.dtype, device=self.device)
        if not self._is_full:
            out.zero_()
        for (first, last), term in self.blocks.items():
            out[:, first:last] = term.dense(start, stop)
        return out

    def weighted_sum(self, weights: Tensor) -> Tensor:
        sums = {place: term.weighted_sum(weights) for place, term in self.blocks.items()}
        total = next(iter(sums.values())).new_zeros(self.shape)
        for (first, last), value in sums.items():
            total[first:last] = value
        return total

    def dot(self, direction: Tensor) -> Tensor:
        return _total(term.dot(direction[a:b]) for (a, b), term in self.blocks.items())

    def select(self, index: Tensor) -> Stacked:
        return self._mapped(lambda term: term.select(index))

    def scaled(self, coefficients: Tensor) -> Stacked:
        return self._mapped(lambda term: term.scaled(coefficients))

    def joined(self, others: Sequence[Term]) -> Term:
        terms = [self, *(other for other in others if isinstance(other, Stacked))]
        together: dict[Range, list[Term]] = {}
        for term in terms:
            for place, block in term.blocks.items():
                together.setdefault(place, []).append(block)
        edges = sorted(together)
        if any(this[1] > following[0] for this, following in pairwise(edges)):
            return Mixed(terms)  # one parameter, split in two ways
        return Stacked({place: merge(found) for place, found in together.items()}, self.shape)

    def pooled(self, index: Tensor, groups: int) -> Stacked:
        return self._mapped(lambda term: term.pooled(index, groups))

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        offers = [term.norm_kernels() for term in self.blocks.values()]
        shared = [name for name in offers[0] if all(name in offer for offer in offers)]
        kernels: dict[str, Callable[[], Tensor]] = {
            name: lambda name=name: _total(offer[name]() for offer in offers)  # type: ignore[misc]
            for name in shared
        }
        return kernels or {"stream": self.streamed_square_norms}

    def streamed_square_norms(self) -> Tensor:
        return _total(term.streamed_square_norms() for term in self.blocks.values())

    def slack(self) -> Tensor | None:
        slacks = [slack for term in self.blocks.values() if (slack := term.slack()) is not None]
        return _total(slacks) if slacks else None

    def double(self) -> Stacked | None:
        doubles = {place: term.double() for place, term in self.blocks.items()}
        known = {place: term for place, term in doubles.items() if term is not None}
        return Stacked(known, self.shape) if len(known) == len(doubles) else None

    def block(self, start: int, stop: int) -> Term:
        """The gradients of rows ``start .. stop - 1`` only."""
        return self.blocks.get((start, stop)) or Dense(self.all()[:, start:stop])

    @property
    def positions(self) -> int:
        return max(term.positions for term in self.blocks.values())

    @property
    def keepable(self) -> bool:
        return any(term.keepable for term in self.blocks.values())

    @property
    def nbytes(self) -> int:
        return sum(term.nbytes for term in self.blocks.values())

    @property
    def key(self) -> Key:
        return ("stacked", tuple(self.shape), *(term.key for term in self.blocks.values()))

    @property
    def dtype(self) -> torch.dtype:
        return self._first.dtype

    @property
    def device(self) -> torch.device:
        return self._first.device

    @property
    def _is_full(self) -> bool:
        return sum(last - first for first, last in self.blocks) == self.shape[0]

    def _mapped(self, change: Callable[[Term], Term]) -> Stacked:
        return Stacked({place: change(term) for place, term in self.blocks.items()}, self.shape)


class Block(Weight):
    """Some rows of a packed parameter, during one capture."""

    rows: Range

    @classmethod
    def of(cls, packed: Weight, start: int, stop: int) -> Block:
        """Rows ``start .. stop - 1`` of ``packed``, with each record's own offset."""
        with torch.enable_grad():
            block = cls.made(packed.graph[start:stop], (packed,), None, narrow=packed.narrow)
        assert isinstance(block, Block)
        block.rows = start, stop
        if packed.offset is not None:
            block.offset = packed.offset.over(lambda term: _block_of(term, start, stop))
        return block

    def settle(self) -> None:
        noted = self.taken()
        if noted is not None:
            (packed,) = self.roots
            packed.add(Stacked({self.rows: noted}, packed.value.shape))


@handles(torch.split, Tensor.split, in_any_capture=True)
def split(
    tape: Tape, tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...] | None:
    """``torch.split`` of a parameter's rows into weights of their own."""
    if isinstance(split_size_or_sections, int):
        size, rows = split_size_or_sections, tensor.shape[dim]
        split_size_or_sections = [min(size, rows - start) for start in range(0, rows, size)]
    return _blocks(tape, tensor, split_size_or_sections, dim)


@handles(torch.chunk, Tensor.chunk, in_any_capture=True)
def chunk(tape: Tape, input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...] | None:
    """``torch.chunk`` of a parameter's rows into weights of their own."""
    return split(tape, input, max(1, -(-input.shape[dim] // chunks)), dim)


def _blocks(
    tape: Tape, tensor: Tensor, sizes: Sequence[int], dim: int
) -> tuple[Tensor, ...] | None:
    known = tape.weights(tensor)
    if known is None or dim != 0 or sum(sizes) != tensor.shape[0]:
        return None  # per-record values (and mistakes that torch refuses): the general rule
    return tuple(
        Tracked.of(Block.of(known[0], stop - size, stop))
        for size, stop in zip(sizes, accumulate(sizes), strict=True)
    )


def _block_of(term: Term, start: int, stop: int) -> Term:
    if isinstance(term, Stacked):
        return term.block(start, stop)
    if isinstance(term, Outer):
        shape = (stop - start, *term.shape[1:])
        return Outer(term.left[..., start:stop], term.right, shape=shape)
    return Dense(term.dense(0, term.records)[:, start:stop])


def _total(parts: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, parts)
