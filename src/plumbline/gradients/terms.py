"""A parameter's per-record gradients as something to compute with: the ``Term``.

A term stands for the gradients ``g_1 .. g_B`` of one parameter without necessarily holding them.
``Dense`` does hold them; each layer file has a term of its own that holds what flowed in and what
flowed back instead. ``Mixed`` adds terms of different kinds (tied weights) and ``Pulled`` carries
gradients through a parametrisation (weight standardisation, weight norm).

Guarantee: ``square_norms`` is never below the squared norm of what ``weighted_sum`` adds up, beyond
2e-6 relative, whatever the record. Rounding is bounded by ``slack`` and added.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from plumbline.gradients.kernels import Key, bucket

CHUNK_BYTES = 1 << 21
"""Per-record temporaries are made a few records at a time, to stay in a core's cache."""


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

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``sum_i weights_i g_i``, of the parameter's shape; ``weights`` is ``[B]``, all finite."""

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
        """Memory that the term holds now."""

    @property
    @abstractmethod
    def key(self) -> Key:
        """What a measured kernel choice depends on."""

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        """Ways to get the squared norms ``[B]`` without keeping the gradients."""
        return {"stream": self.streamed_square_norms}

    def slack(self) -> Tensor | None:
        """Per record, a bound ``[B]`` on the rounding error of its gradient's norm, if not tiny."""
        return None

    def sizes(self) -> Tensor:
        """The norm of each record's gradient, ``[B]``, or a cheap bound above it."""
        return next(iter(self.norm_kernels().values()))().sqrt()

    @property
    def positions(self) -> int:
        """How many products or rows are summed in a gradient."""
        return 1

    @property
    def keepable(self) -> bool:
        """Whether holding the dense gradients can be cheaper than computing them twice."""
        return True

    @property
    def dense_nbytes(self) -> int:
        """Memory that the dense gradients would take."""
        return self.records * self.shape.numel() * self.dtype.itemsize

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The gradients' floating-point type."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the gradients live."""

    def double(self) -> Term | None:
        """The same term in float64, for records whose sums cancel; None when that cannot help."""
        return None

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of records whose dense gradients fit a core's cache together."""
        size = max(1, CHUNK_BYTES // max(1, self.shape.numel() * self.dtype.itemsize))
        for start in range(0, self.records, size):
            yield start, min(start + size, self.records)

    def streamed_square_norms(self) -> Tensor:
        """Squared norms ``[B]`` from dense gradients made and dropped a few records at a time."""
        parts = [square_rows(self.dense(start, stop)) for start, stop in self.chunks()]
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
    """Gradients held as they are, ``[B, *shape]``."""

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

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = self.values.reshape(self.records, self.shape.numel())
        return (weights.to(flat.dtype) @ flat).view(self.shape)

    def select(self, index: Tensor) -> Dense:
        return Dense(self.values[index])

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
        positions = math.prod(back.shape[dim] for dim in dims)
        if positions == 1:
            return cls(back.squeeze(dims), squares)
        slack = partial(_sum_slack_of, squares, positions, back.dtype)
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


class Compound(Term):
    """A term built on others, which answers through their dense gradients."""

    parts: Sequence[Term]

    def select(self, index: Tensor) -> Term:
        return Dense(self.all()[index])

    def scaled(self, coefficients: Tensor) -> Term:
        return Dense(self.all()).scaled(coefficients)

    def joined(self, others: Sequence[Term]) -> Term:
        return Dense(self.all()).joined(others)

    def pooled(self, index: Tensor, groups: int) -> Term:
        return Dense(self.all()).pooled(index, groups)

    def slack(self) -> Tensor | None:
        slacks = [slack for part in self.parts if (slack := part.slack()) is not None]
        return torch.stack(slacks).sum(0) if slacks else None

    @property
    def positions(self) -> int:
        return max(part.positions for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def key(self) -> Key:
        return (type(self).__name__, tuple(self.shape), *(part.key for part in self.parts))

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].device


class Mixed(Compound):
    """The sum of terms of different kinds on one parameter: tied weights, cross terms included."""

    def __init__(self, parts: Sequence[Term]) -> None:
        self.parts = parts
        self.records = parts[0].records
        self.shape = parts[0].shape

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        total = torch.stack([part.dense(start, stop) for part in self.parts]).sum(0)
        return total if out is None else out.copy_(total)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.stack([part.weighted_sum(weights) for part in self.parts]).sum(0)

    def dot(self, direction: Tensor) -> Tensor:
        return torch.stack([part.dot(direction) for part in self.parts]).sum(0)

    def select(self, index: Tensor) -> Mixed:
        return Mixed([part.select(index) for part in self.parts])

    def scaled(self, coefficients: Tensor) -> Mixed:
        return Mixed([part.scaled(coefficients) for part in self.parts])

    def pooled(self, index: Tensor, groups: int) -> Mixed:
        return Mixed([part.pooled(index, groups) for part in self.parts])

    def slack(self) -> Tensor:
        # The parts can cancel each other: what each is rounded by counts, however exact its sum.
        total = torch.stack([part.sizes().double() for part in self.parts]).sum(0)
        total = total * (_ROUNDINGS * unit_roundoff(self.dtype))
        within = super().slack()
        return total if within is None else total + within

    def double(self) -> Mixed | None:
        parts = [double for part in self.parts if (double := part.double()) is not None]
        return Mixed(parts) if len(parts) == len(self.parts) else None

    def rows(self, index: Tensor) -> Tensor:
        return torch.stack([part.rows(index) for part in self.parts]).sum(0)


class Pulled(Compound):
    """Gradients of a parametrisation's original, from those of the weight it makes.

    ``pull`` maps ``[N, *made]`` gradients of the made weight to ``[N, *shape]`` of the original; it
    is linear, so a weighted sum is pulled once.
    """

    def __init__(self, made: Term, shape: torch.Size, pull: Callable[[Tensor], Tensor]) -> None:
        self.parts = [made]
        self.records = made.records
        self.shape = shape
        self._pull = pull

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        pulled = self._pull(self.parts[0].dense(start, stop))
        return pulled if out is None else out.copy_(pulled)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._pull(self.parts[0].weighted_sum(weights)[None])[0]

    def slack(self) -> Tensor | None:
        return None  # the parametrisation may shrink or stretch it; the made weight's is not ours


class Patched(Compound):
    """A term of which some records' gradients were computed again, exactly, and are kept.

    Their sums cancel: what another evaluation in float32 would add up for them is rounding.
    """

    def __init__(self, term: Term, index: Tensor, exact: Dense) -> None:
        self.parts = [term, exact]
        self.records, self.shape = term.records, term.shape
        self._index = index

    def dense(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        term, exact = self.parts
        rows = term.dense(start, stop, out)
        here = (self._index >= start) & (self._index < stop)
        rows[self._index[here] - start] = exact.all()[here]
        return rows

    def weighted_sum(self, weights: Tensor) -> Tensor:
        term, exact = self.parts
        others = weights.index_fill(0, self._index, 0)
        return term.weighted_sum(others) + exact.weighted_sum(weights[self._index])

    def select(self, index: Tensor) -> Patched:
        term, exact = self.parts
        place = torch.full((self.records,), -1, device=index.device)
        place[self._index] = torch.arange(len(self._index), device=index.device)
        kept = (place[index] >= 0).nonzero()[:, 0]
        patches = exact.select(place[index][kept])
        assert isinstance(patches, Dense)
        return Patched(term.select(index), kept, patches)

    def norm_kernels(self) -> dict[str, Callable[[], Tensor]]:
        return {"stream": self.streamed_square_norms}


def merge(terms: Sequence[Term]) -> Term:
    """One term for all the uses of a parameter in a capture."""
    first, *others = terms
    if not others:
        return first
    if all(type(other) is type(first) for other in others):
        return first.joined(others)
    return Mixed(terms)


def rows_like(values: Tensor, like: Tensor) -> Tensor:
    """``values`` (``[B]``) shaped to multiply the rows of ``like`` (``[B, ...]``)."""
    return values.to(like.dtype).reshape(-1, *(1,) * (like.dim() - 1))


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
    return (left * right * overlap).sqrt() * (_ROUNDINGS * unit_roundoff(dtype))


def _sum_slack_of(squares: RowSquares, positions: int, dtype: torch.dtype) -> Tensor:
    """A bound ``[B]`` on the rounding of ``sum_t d_it``, from the squared norms of the ``d_i``."""
    return (squares() * positions).sqrt() * (_ROUNDINGS * unit_roundoff(dtype))


_ROUNDINGS = 8.0
"""Roundings of a term's size that a blocked sum is taken to carry; a running sum has up to T."""


def running_slack(slack: Tensor, positions: int) -> Tensor:
    """The bound on a sum whose every rounding may go the same way, from the blocked sum's."""
    return slack * max(1.0, positions / _ROUNDINGS)
