"""Sums over records whose rounding is bounded, whatever the records and however many they are.

A float32 sum of B gradients of norm C rounds by up to ``2^-25 B^2 C``: enough, at a few thousand
records, for one record to move it by more than C. Here sums over records are float64, from the
first addition to the noise's grid, but for those of a few records that are neighbours by number.

Guarantee. Let ``x_1 .. x_N`` be the clipped gradients of a batch, over all parameters, of norm at
most C, N at most ``MOST_RECORDS``. Adding or removing one of them moves the sum by at most
``(1 + ROUNDING) C``: ``ROUNDING`` is charged, as part of the sensitivity, where a sum is asked for.

Proof. (1) *A sum of n items.* An entry of the sum is computed by some binary tree, any one, of
additions with unit roundoff u, in which products may be fused. Item i passes ``d_i`` roundings, its
own product's included, so the entry's error is at most ``u sum_i d_i |x_i|`` to first order, and
``sum_i d_i^2`` is largest for a chain, where the depths are ``n, n, n - 1 .. 2``; call that
``D(n)``. By Cauchy and Schwarz the entry's squared error is at most ``u^2 D(n) sum_i x_i^2``. Trees
may differ between entries: summed over all of them this is ``u^2 D(n) n C^2``. So the error is at
most ``error(n, u) C``, about ``u n^2 C / sqrt(3)``, whatever the library's order of summation. All
chunks and processes together are one such tree over N records, in either batch: ``error(N, u)``
twice. (2) *Positions.* Where a gradient is itself a sum over positions, which may cancel, positions
of different records are never added before each record's own sum is complete, or only for ``FEW``
records at a time. ``sum_t |d_it| |a_it|`` times the number of positions is at most ``_CANCELLING``
times the record's norm (others are computed again by themselves: ``Patched``), so this is
``u FEW _CANCELLING`` for each record, in both batches. (3) *Buckets.* A matrix's rank-one gradients
may be added in float32 within a bucket of at most ``MOST_TOGETHER`` records, bucket by bucket in
float64. Which bucket a record is in follows from its own number, never from its place in the batch,
and whether buckets are used at all is public. So one record changes the float32 sum of its own
bucket only, which is within ``error(MOST_TOGETHER + 1, 2^-24) C`` of the exact one in both batches:
products of weights and gradients are rounded once more, hence the 1. (What underflows in float32
is below 2^-130; C is between ``LEAST_BOUND`` and its inverse.) The three add up to
``rounding_bound()``, which is below ``ROUNDING``. Terms of order u^2 are below 1e-9 of it.

What is taken for granted: a record's own gradient is the same bits in both batches.
docs/decisions.md says how far that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.compiled import Together

ROUNDING = 4e-4
"""How much further than its norm one record can move a sum of many, relative."""

MOST_RECORDS = 1_000_000
"""The most records in one sum for which that is proven."""

FEW = 8
"""How many records' positions are added up together."""

TOGETHER = 32
"""How many records there are in a bucket, about, whose products are added in float32."""

MOST_TOGETHER = 48
"""The most for which that is proven; a fuller bucket is added in float64."""

LEAST_BOUND = 1e-30
"""The smallest bound on a record's gradient for which that is proven, and one over the largest."""

_CANCELLING = 17_000.0
MANY = 1 << 18
"""Numbers in all rows, from which on a compiled loop pays."""

_ROWS_BYTES = 1 << 18  # of float32 rows that are converted to float64 at once


def error(items: int, roundoff: float = 2.0**-53) -> float:
    """The rounding of a sum of vectors, relative to the norm of the largest (see (1) above)."""
    squares = items**2 + items * (items + 1) * (2 * items + 1) / 6 - 1
    return roundoff * math.sqrt(items * squares)


def rounding_bound(records: int = MOST_RECORDS, buckets: bool = True) -> float:
    """How much further than its norm one record moves the sum of ``records``, relative."""
    positions = 2.0**-53 * FEW * _CANCELLING * records
    bucket = error(MOST_TOGETHER + 1, 2.0**-24) if buckets else 0.0
    return 2 * (error(records) + positions + bucket)


class RecordSums(Together):
    """Loops over the same records, to be run at once.

    Attributes:
        buckets: ``[K, 2]``, the first row of each bucket and the row after its last; None where
            everything is added in float64.
        full: The buckets, left out above, of more records than may be added in float32.
    """

    def __init__(self, worth: bool = False, numbers: Tensor | None = None) -> None:
        """Takes the bucket of each record, ``[B]``, ascending, if there are any."""
        super().__init__(worth)
        self.buckets: NDArray[np.int64] | None = None
        self.full: list[list[int]] = []
        if numbers is not None:
            own = numbers.numpy()
            # Rows of one number that follow each other: chosen records may be in any order.
            begins = (own[1:] != own[:-1]).nonzero()[0] + 1
            edges = np.concatenate([[0], begins, [len(own)]])
            buckets = np.stack([edges[:-1], edges[1:]], 1)
            full = buckets[:, 1] - buckets[:, 0] > MOST_TOGETHER
            self.buckets, self.full = buckets[~full], buckets[full].tolist()


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64; Apple's GPU does not."""
    return device.type != "mps"


def float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on a device that has it."""
    if tensor.dtype == torch.float64 and not tensor.requires_grad:
        return tensor
    device = tensor.device if has_float64(tensor.device) else torch.device("cpu")
    return tensor.detach().to(device=device, dtype=torch.float64)


def times(rows: Tensor, weights: Tensor) -> Tensor:
    """``weights_i rows_i`` in float64, in one pass, from ``[B, ...]`` and ``[B]``."""
    weights = float64(weights)
    if rows.device != weights.device:
        rows = float64(rows)
    return rows * weights.view(-1, *(1,) * (rows.dim() - 1))


def summed_rows(
    rows: Callable[[int, int], Tensor], weights: Tensor, shape: torch.Size, at_once: int
) -> Tensor:
    """``sum_i weights_i g_i``, of the parameter's shape, in float64.

    Args:
        rows: Gives the gradients of records ``start .. stop - 1``, ``[stop - start, *shape]``.
        weights: ``[B]``.
        shape: The parameter's shape.
        at_once: How many records' gradients to ask for at most.
    """
    numel = shape.numel()
    weights = float64(weights)
    if not len(weights):
        return weights.new_zeros(shape)
    if len(weights) * numel >= MANY and weights.device.type == "cpu":
        from plumbline.gradients.row_sums import add_rows  # numba, which takes time to import

        total = weights.new_zeros(numel)
        order: list[int] = []
        for first, last in ranges(0, len(weights), at_once):
            some = rows(first, last)
            order = order or memory_order(some)
            add_rows(_flat(some, order), weights[first:last], total)
        return _shaped(total, order, shape)
    few = min(at_once, max(1, _ROWS_BYTES // (4 * max(1, numel))))
    if len(weights) <= few:
        everyone = rows(0, len(weights)).reshape(len(weights), numel)
        return torch.mv(float64(everyone).T, weights).view(shape)
    total = weights.new_zeros(numel)
    for first, last in ranges(0, len(weights), few):
        some = rows(first, last).reshape(last - first, numel)
        total.addmv_(float64(some).T, weights[first:last])
    return total.view(shape)


def begin_rows(rows: Tensor, weights: Tensor, together: Together) -> Callable[[], Tensor]:
    """Notes the same sum for gradients ``[B, *shape]`` that are there already."""
    shape = rows.shape[1:]
    if weights.device.type != "cpu" or not (together.worth or rows.numel() >= MANY):
        return partial(summed_rows, lambda a, b: rows[a:b], weights, shape, max(1, len(weights)))
    from plumbline.gradients.row_sums import add_rows

    total = weights.new_zeros(shape.numel())
    if rows.dim() == 2:  # a bias's, most often
        add_rows(_loopable(rows).contiguous(), weights, total, together)
        return lambda: total
    order = memory_order(rows)
    add_rows(_flat(rows, order), weights, total, together)
    return partial(_shaped, total, order, shape)


def memory_order(rows: Tensor) -> list[int]:
    """The dimensions of ``[B, *shape]`` without the first, as they follow each other in memory."""
    return sorted(range(1, rows.dim()), key=rows.stride, reverse=True)


def _flat(rows: Tensor, order: list[int]) -> Tensor:
    """``[B, *shape]`` as ``[B, n]`` in another order of dimensions; float32 or float64."""
    rows = _loopable(rows).permute(0, *order)
    return rows.reshape(len(rows), rows.shape[1:].numel()).contiguous()


def _loopable(rows: Tensor) -> Tensor:
    """In a type that compiled loops are there for."""
    return rows if rows.dtype == torch.float32 else float64(rows)


def _shaped(total: Tensor, order: list[int], shape: torch.Size) -> Tensor:
    """A sum ``[n]`` of such rows in the parameter's shape."""
    ordered = total.view([shape[dim - 1] for dim in order])
    return ordered.permute([order.index(dim + 1) for dim in range(len(shape))]).contiguous()


def summed_positions(left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """``sum_it weights_i left_it right_it^T`` in float64, from ``[B, T, m]`` and ``[B, T, n]``."""
    total = float64(left.new_zeros(left.shape[2], right.shape[2]))
    for start, stop in ranges(0, len(left), FEW):
        some, other = times(left[start:stop], weights[start:stop]), float64(right[start:stop])
        total.add_(some.flatten(0, 1).T @ other.flatten(0, 1))
    return total


def ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """``start .. stop - 1`` in ranges of at most ``size``."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)
