"""Sums over records whose rounding is bounded, whatever the records and however many they are.

A float32 sum of B gradients of norm C rounds by up to ``2^-25 B^2 C``: enough, at a few thousand
records, for one record to move it by more than C. Here every sum is kept in float64. Only within a
*bin*, of at most ``BIN`` records, may a product be taken in float32, where that is what makes it
fast. Each record draws its bin at random (``Bins``), so that a record more or less touches one bin.

Guarantee. Let ``x_1 .. x_N`` be the clipped gradients of a batch, over all parameters, of norm at
most C, N at most ``MOST_RECORDS``. Adding or removing one of them moves the sum by at most
``(1 + ROUNDING) C``: ``ROUNDING`` is charged, as part of the sensitivity, where a sum is asked for.

Proof. (1) *A sum of n items.* An entry of the sum is computed by some binary tree, any one, of
additions with unit roundoff u, in which products may be fused. Item i passes ``d_i`` roundings, its
own product's included, so the entry's error is at most ``u sum_i d_i |x_i|`` to first order, and
``sum_i d_i^2`` is largest for a chain, where the depths are ``n, n, n - 1 .. 2``; call that
``D(n)``. By Cauchy and Schwarz the entry's squared error is at most ``u^2 D(n) sum_i x_i^2``. Trees
may differ between entries: summed over all of them this is ``u^2 D(n) n C^2``. So the error is at
most ``error(n, u) C``, about ``u n^2 C / sqrt(3)``, whatever the library's order of summation.

(2) *In float32.* Two batches that differ by one record have the same bins but for one, and equal
bins have equal sums: the same product, of the same shape, of the same numbers. The two versions of
that one bin have at most BIN records; a fuller bin is summed in float64. That is ``error(BIN, u)``
twice. (3) *In float64.* The additions of all bins, chunks and processes are one tree over at most N
records; here nothing needs to be equal, so both batches count whole: ``error(N, u64)`` twice.
(4) *Positions.* Where a gradient is itself a sum over positions, which may cancel, positions of
different records are never added before each record's own sum is complete, or only in float64 and
for ``FEW`` records at a time. ``sum_t |d_it| |a_it|`` times the number of positions is at most
``_CANCELLING`` times the record's norm (others are computed again by themselves: ``Patched``), so
this is ``u64 FEW _CANCELLING`` for each record, in both batches. The three add up to
``rounding_bound()``, which is below ``ROUNDING``. Terms of order u^2 are below 1e-5 of it.

What is taken for granted: a record's own gradient is the same bits in both batches, and so is a
product of the same shape and numbers. docs/decisions.md says how far that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

BIN = 108
"""The most records whose gradients are added in float32."""

FILL = 86
"""How many records a bin should have: about 1 of 100 then has more than ``BIN``."""

ROUNDING = 1e-3
"""How much further than its norm one record can move a sum of many, relative."""

MOST_RECORDS = 1_000_000
"""The most records in one sum for which that is proven."""

FEW = 8
"""How many records' positions are added up together, in float64."""

_CANCELLING = 17_000.0
_TILE = 1 << 16  # entries of a product that stay in a core's cache, in float32 and in float64
_ROWS_BYTES = 1 << 18  # of float32 rows that are converted to float64 at once
_NARROW = 4096  # gradients with fewer entries are summed in float64: bins would only cost time


def error(items: int, roundoff: float) -> float:
    """The rounding of a sum of vectors, relative to the norm of the largest (see (1) above)."""
    squares = items**2 + items * (items + 1) * (2 * items + 1) / 6 - 1
    return roundoff * math.sqrt(items * squares)


def rounding_bound(records: int = MOST_RECORDS) -> float:
    """How much further than its norm one record moves the sum of ``records``, relative."""
    single, double = 2.0**-24, 2.0**-53
    positions = double * FEW * _CANCELLING * records
    return 2 * (error(BIN, single) + error(records, double) + positions)


class Bins:
    """The bin of each record of a chunk, ``[B]``: equal ones adjacent, and whole in one chunk.

    A negative bin is none: its records are added in float64.
    """

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels

    @classmethod
    def in_order(cls, records: int) -> Bins:
        """Bins of records as they come: for sums that are not released, where only speed counts."""
        return cls(torch.arange(records) // FILL)

    def select(self, index: Tensor) -> Bins:
        """The bins of records ``index``, ascending."""
        return Bins(self._labels[index.to(self._labels.device)])

    @cached_property
    def spans(self) -> list[tuple[int, int, bool]]:
        """Records ``start .. stop - 1`` of each bin, and whether they may be added in float32."""
        spans, start = [], 0
        labels, sizes = torch.unique_consecutive(self._labels, return_counts=True)
        for label, size in zip(labels.tolist(), sizes.tolist(), strict=True):
            spans.append((start, start + size, label >= 0 and size <= BIN))
            start += size
        return spans


def bin_count(expected: int, at_once: int | None, processes: int) -> int | None:
    """How many bins a batch has; None where they would be too small to be of use.

    Public, as its arguments are: the expected number of records, the most in a physical chunk, and
    the number of processes. A bin is whole in a chunk and in a process, and all processes get
    equally many.
    """
    small_chunks = at_once is not None and at_once < 2 * BIN
    small_shares = processes > 1 and expected < 2 * FILL * processes
    if small_chunks or small_shares:
        return None
    return processes * max(1, math.ceil(expected / (FILL * processes)))


def binned(drawn: Tensor) -> Tensor:
    """The bins that records drew, ``[N]``, and -1 where one was drawn by more than ``BIN``."""
    return drawn.masked_fill(torch.bincount(drawn)[drawn] > BIN, -1)


def float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, on a device that has it (Apple's GPU does not)."""
    device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
    return tensor.detach().to(device=device, dtype=torch.float64)


def summed_rows(
    rows: Callable[[int, int], Tensor],
    weights: Tensor,
    shape: torch.Size,
    bins: Bins | None,
    at_once: int,
) -> Tensor:
    """``sum_i weights_i g_i``, of the parameter's shape, in float64.

    Args:
        rows: Gives the gradients of records ``start .. stop - 1``, ``[stop - start, *shape]``.
        weights: ``[B]``, of the gradients' type.
        shape: The parameter's shape.
        bins: Which records may be added in float32.
        at_once: How many records' gradients to ask for.
    """
    numel = shape.numel()
    total = float64(weights.new_zeros(numel))
    few = min(at_once, max(1, _ROWS_BYTES // (4 * max(1, numel))))
    single = weights.dtype == torch.float32 and numel >= _NARROW
    for start, stop, fits in _spans(weights, bins if single else None):
        part = weights.new_zeros(numel) if fits else total
        for first, last in ranges(start, stop, at_once if fits else few):
            some, factors = rows(first, last).reshape(last - first, numel), weights[first:last]
            if fits:
                part.addmv_(some.T, factors)
            else:
                total.addmv_(float64(some).T, float64(factors))
        if fits:
            total.add_(float64(part))
    return total.view(shape)


def summed_products(left: Tensor, right: Tensor, bins: Bins | None) -> Tensor:
    """``sum_i left_i right_i^T`` in float64, from ``[B, m]`` and ``[B, n]``: one product a record.

    The product of a bin is taken some rows at a time, so that it and the sum stay in the cache.
    """
    height, width = left.shape[1], right.shape[1]
    total = float64(left.new_zeros(height, width))
    spans = _spans(left, bins if left.dtype == torch.float32 else None)
    tile = min(height, max(1, _TILE // max(1, width)))
    product = left.new_empty(tile, width)
    double = total.new_empty(tile, width)  # float32 is added to float64 much faster as float64
    for top, end in ranges(0, height, tile) if tile else ():
        part, wide = product[: end - top], double[: end - top]
        for start, stop, fits in spans:
            if fits:
                torch.mm(left[start:stop, top:end].T, right[start:stop], out=part)
                total[top:end].add_(wide.copy_(part))
    for start, stop, fits in spans:
        if not fits:
            total.addmm_(float64(left[start:stop]).T, float64(right[start:stop]))
    return total


def summed_positions(left: Tensor, right: Tensor) -> Tensor:
    """``sum_it left_it right_it^T`` in float64, from ``[B, T, m]`` and ``[B, T, n]``."""
    total = float64(left.new_zeros(left.shape[2], right.shape[2]))
    for start, stop in ranges(0, len(left), FEW):
        some, other = float64(left[start:stop]), float64(right[start:stop])
        total.add_(some.flatten(0, 1).T @ other.flatten(0, 1))
    return total


def ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """``start .. stop - 1`` in ranges of at most ``size``."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)


def _spans(records: Tensor, bins: Bins | None) -> list[tuple[int, int, bool]]:
    """The bins' spans; without bins, one of all records."""
    return [(0, len(records), False)] if bins is None else bins.spans
