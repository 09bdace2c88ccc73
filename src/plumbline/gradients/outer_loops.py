"""Sums and norms of ``g_i = sum_t left_it right_it^T`` in compiled loops that store no ``g_i``.

With few positions, ``g_i`` is larger than what it is made of, and writing it to memory and reading
it again takes longer than computing it twice. The sum over records forms a small tile of one
``g_i`` after the other in float32 registers, and adds them up in float64. With one position, the
tile is that of a bucket of records (``summation.py``), or all is float64. The norms are
``|g_i|^2 = sum_ts (left_t . left_s)(right_t . right_s)``, in float64 because this cancels.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.compiled import Together, compiled
from plumbline.gradients.summation import RecordSums
from plumbline.gradients.vector_loops import (
    COLUMNS,
    DOUBLE_COLUMNS,
    LANES,
    ROWS,
    add_double_tile,
    add_weighted_tile,
    lined_up,
    scale_into,
)

Floats = NDArray[np.float32]

_RECORDS = 128  # whose factors of a tile stay in the fastest cache
_IN_BUCKETS = 256  # the same, for factors in float32; more than fit one bucket
_APART = 2  # places between two tiles, so that they do not all fall into the same lines
_ROWS = 64  # of the sum: they stay in the cache while all records pass


def add_outer(
    left: Tensor, right: Tensor, weights: Tensor, total: Tensor, together: Together
) -> None:
    """Notes a loop that adds ``sum_i weights_i g_i`` to ``total``, each ``g_i`` once complete.

    Args:
        left: ``[B, T, m]`` on the processor, float32.
        right: ``[B, T, n]``, float32.
        weights: ``[B]``, float64.
        total: ``[m, n]``, float64.
        together: Where to note it.
    """
    lefts, rights = left.contiguous().numpy(), right.contiguous().numpy()
    factors, sums = weights.numpy(), total.numpy()
    together.add(lambda start, stop: _add(lefts, rights, factors, sums, start, stop), left.shape[2])


def add_rank_one(
    left: Tensor, right: Tensor, weights: Tensor, total: Tensor, together: RecordSums,
    squares: Tensor | None = None,
) -> None:  # fmt: skip
    """The same for ``g_i = left_i right_i^T``, from ``[B, m]`` and ``[B, n]``.

    All in float64, but for the records of each bucket where the squared norms of ``left_i``,
    ``[B]`` float64, are given and there are buckets.
    """
    lefts, rights = left.contiguous().numpy(), right.contiguous().numpy()
    factors, sums = weights.numpy(), total.numpy()
    exact = [[0, len(lefts)]]
    if together.buckets is not None and squares is not None:
        exact = together.full
        together.add(
            partial(_add_buckets, lefts, rights, factors, squares.numpy(), together.buckets, sums),
            left.shape[1],
            cost=left.numel() * right.shape[1],
        )
    for first, last in exact:
        here = slice(first, last)
        together.add(
            partial(_add_rank_one, lefts[here], rights[here], factors[here], sums),
            left.shape[1],
            cost=(last - first) * left.shape[1] * right.shape[1],
        )


def gram_squares(left: Tensor, right: Tensor, together: Together) -> Tensor:
    """Squared norms ``[3, B]`` of ``g_i``, ``left_i`` and ``right_i``, once the loop was run."""
    squares = torch.empty(3, len(left), dtype=torch.float64)
    lefts, rights, found = left.contiguous().numpy(), right.contiguous().numpy(), squares.numpy()
    together.add(lambda start, stop: _gram(lefts, rights, found, start, stop), len(left))
    return squares


@compiled(reorder=True)
def _dots(a: Floats, b: Floats, x: Floats, y: Floats) -> tuple[float, float, float, float]:
    """``a . x, a . y, b . x, b . y`` in float64."""
    ax, ay, bx, by = 0.0, 0.0, 0.0, 0.0
    for k in range(len(a)):
        a_k, b_k, x_k, y_k = np.float64(a[k]), np.float64(b[k]), np.float64(x[k]), np.float64(y[k])
        ax += a_k * x_k
        ay += a_k * y_k
        bx += b_k * x_k
        by += b_k * y_k
    return ax, ay, bx, by


@compiled(fuse=True)
def _add_edge(
    total: NDArray[np.float64], weight: float, left: Floats, right: Floats, first: int, last: int,
    begin: int,
) -> None:  # fmt: skip
    """One record's product in rows ``first .. last - 1``, from column ``begin`` on."""
    own = np.empty(right.shape[1], np.float32)
    for row in range(first, last):
        own[:] = 0
        for t in range(len(left)):
            factor, columns = left[t, row], right[t]
            for j in range(begin, len(own)):
                own[j] += factor * columns[j]
        sums = total[row]
        for j in range(begin, len(own)):
            sums[j] += weight * own[j]


@compiled(
    "void(float32[:, :, ::1], float32[:, :, ::1], float64[::1], float64[:, ::1], int64, int64)"
)
def _add(
    left: Floats, right: Floats, weights: NDArray[np.float64], total: NDArray[np.float64],
    start: int, stop: int,
) -> None:  # fmt: skip
    records, positions, rows = left.shape
    columns = right.shape[2]
    sums, lefts, rights = total.reshape(-1), left.reshape(-1), right.reshape(-1)
    whole = columns - columns % LANES
    for first in range(start, stop, _ROWS):
        last = min(first + _ROWS, stop)
        tiled = last - (last - first) % ROWS
        column = 0
        while column < whole:  # these columns stay in the fastest cache while all records pass
            wide = whole - column >= COLUMNS
            for i in range(records):
                weight, own, other = weights[i], i * positions * rows, i * positions * columns
                for row in range(first, tiled, ROWS):
                    if wide:
                        add_weighted_tile(
                            sums, row * columns + column, columns, weight, lefts, own + row, rows,
                            rights, other + column, columns, positions, 3,
                        )  # fmt: skip
                    else:
                        add_weighted_tile(
                            sums, row * columns + column, columns, weight, lefts, own + row, rows,
                            rights, other + column, columns, positions, 1,
                        )  # fmt: skip
            column += COLUMNS if wide else LANES
        for i in range(records):
            if whole < columns:
                _add_edge(total, weights[i], left[i], right[i], first, tiled, whole)
            if tiled < last:
                _add_edge(total, weights[i], left[i], right[i], tiled, last, 0)


@compiled()
def _pack(
    source: Floats, at: int, count: int, factor: float, tiles: NDArray[np.floating], place: int,
    places: int, width: int,
) -> None:  # fmt: skip
    """Puts ``count`` numbers from ``source[at]`` on, times a factor, at a place of each tile.

    Tiles have so many ``places`` of ``width`` numbers, which is a multiple of ``ROWS``.
    """
    for begin in range(0, count, width):
        to = begin * places + place * width
        here = min(width, count - begin)
        whole = here - here % ROWS
        for j in range(0, whole, ROWS):
            scale_into(source, at + begin + j, tiles, to + j, factor, ROWS)
        for j in range(whole, here):
            tiles[to + j] = factor * source[at + begin + j]


@compiled()
def _add_bucket_tiles(
    total: NDArray[np.float64], at: int, step: int, lefts: Floats, left_at: int, rights: Floats,
    right_at: int, buckets: NDArray[np.int64], first: int, last: int, vectors: int,
) -> None:  # fmt: skip
    """Adds the tile of each bucket, ``vectors`` vectors wide."""
    for bucket in range(first, last):
        size = buckets[bucket, 1] - buckets[bucket, 0]
        if vectors == 3:
            add_weighted_tile(
                total, at, step, 1.0, lefts, left_at, ROWS, rights, right_at, COLUMNS, size, 3
            )
        elif vectors == 2:
            add_weighted_tile(
                total, at, step, 1.0, lefts, left_at, ROWS, rights, right_at, COLUMNS, size, 2
            )
        else:
            add_weighted_tile(
                total, at, step, 1.0, lefts, left_at, ROWS, rights, right_at, COLUMNS, size, 1
            )
        left_at, right_at = left_at + size * ROWS, right_at + size * COLUMNS


@compiled("void(float32[:, ::1], float32[:, ::1], float64[::1], float64[:, ::1], int64, int64)")
def _add_rank_one(
    left: Floats, right: Floats, weights: NDArray[np.float64], total: NDArray[np.float64],
    start: int, stop: int,
) -> None:  # fmt: skip
    (records, length), columns = left.shape, right.shape[1]
    blocks = (stop - start + ROWS - 1) // ROWS
    panels = (columns + DOUBLE_COLUMNS - 1) // DOUBLE_COLUMNS
    places = _RECORDS + _APART
    left_numbers = np.zeros(blocks * places * ROWS)
    right_numbers = lined_up(panels * places * DOUBLE_COLUMNS)
    flat, lefts, rights = total.reshape(-1), left.reshape(-1), right.reshape(-1)
    edge = np.empty((ROWS, DOUBLE_COLUMNS))
    for first in range(0, records, _RECORDS):
        count = min(_RECORDS, records - first)
        for i in range(count):
            n = first + i
            at = n * length + start
            _pack(lefts, at, stop - start, weights[n], left_numbers, i, places, ROWS)
            _pack(rights, n * columns, columns, 1.0, right_numbers, i, places, DOUBLE_COLUMNS)
        for panel in range(panels):
            column, right_at = panel * DOUBLE_COLUMNS, panel * places * DOUBLE_COLUMNS
            width = min(DOUBLE_COLUMNS, columns - column)
            for block in range(blocks):
                row, left_at = start + block * ROWS, block * places * ROWS
                rows = min(ROWS, stop - row)
                if rows == ROWS and width == DOUBLE_COLUMNS:
                    add_double_tile(
                        flat, row * columns + column, columns,
                        left_numbers, left_at, right_numbers, right_at, count,
                    )  # fmt: skip
                    continue
                edge[:] = 0
                add_double_tile(
                    edge.reshape(-1), 0, DOUBLE_COLUMNS,
                    left_numbers, left_at, right_numbers, right_at, count,
                )  # fmt: skip
                for p in range(rows):
                    for j in range(width):
                        total[row + p, column + j] += edge[p, j]


@compiled(
    "void(float32[:, ::1], float32[:, ::1], float64[::1], float64[::1], int64[:, ::1],"
    " float64[:, ::1], int64, int64)"
)
def _add_buckets(
    left: Floats, right: Floats, weights: NDArray[np.float64], squares: NDArray[np.float64],
    buckets: NDArray[np.int64], total: NDArray[np.float64], start: int, stop: int,
) -> None:  # fmt: skip
    length, columns = left.shape[1], right.shape[1]
    blocks = (stop - start + ROWS - 1) // ROWS
    panels = (columns + COLUMNS - 1) // COLUMNS
    places = _IN_BUCKETS + _APART
    left_numbers = lined_up(blocks * places * ROWS)
    right_numbers = lined_up(panels * places * COLUMNS)
    flat, lefts, rights = total.reshape(-1), left.reshape(-1), right.reshape(-1)
    edge = np.empty((ROWS, COLUMNS))
    edge_numbers = edge.reshape(-1)
    first = 0
    while first < len(buckets):
        last, count = first, 0
        while last < len(buckets) and count + buckets[last, 1] - buckets[last, 0] <= _IN_BUCKETS:
            for n in range(buckets[last, 0], buckets[last, 1]):
                # A power of two makes the left factor's norm about one, so that nothing of it
                # overflows or vanishes in float32, and the right one's about the record's own.
                scale = math.ldexp(1.0, math.frexp(weights[n] * math.sqrt(squares[n]))[1])
                weight, at = weights[n] / scale, n * length + start
                _pack(lefts, at, stop - start, weight, left_numbers, count, places, ROWS)
                _pack(rights, n * columns, columns, scale, right_numbers, count, places, COLUMNS)
                count += 1
            last += 1
        for panel in range(panels):
            column, right_at = panel * COLUMNS, panel * places * COLUMNS
            width = min(COLUMNS, columns - column)
            vectors = (width + LANES - 1) // LANES
            for block in range(blocks):
                row, left_at = start + block * ROWS, block * places * ROWS
                rows = min(ROWS, stop - row)
                if rows == ROWS and width == vectors * LANES:
                    _add_bucket_tiles(
                        flat, row * columns + column, columns, left_numbers, left_at,
                        right_numbers, right_at, buckets, first, last, vectors,
                    )  # fmt: skip
                    continue
                edge[:] = 0
                _add_bucket_tiles(
                    edge_numbers, 0, COLUMNS, left_numbers, left_at, right_numbers, right_at,
                    buckets, first, last, vectors,
                )  # fmt: skip
                for p in range(rows):
                    for j in range(width):
                        total[row + p, column + j] += edge[p, j]
        first = last


@compiled("void(float32[:, :, ::1], float32[:, :, ::1], float64[:, ::1], int64, int64)")
def _gram(left: Floats, right: Floats, squares: NDArray[np.float64], start: int, stop: int) -> None:
    positions = left.shape[1]
    for i in range(start, stop):
        total, lefts, rights = 0.0, 0.0, 0.0
        for t in range(0, positions, 2):
            for s in range(0, t + 1, 2):
                # Two by two positions; beyond the last one, it takes the place and does not count.
                t1, s1 = min(t + 1, positions - 1), min(s + 1, positions - 1)
                a, b, c, d = _dots(left[i, t], left[i, t1], left[i, s], left[i, s1])
                x, y, z, w = _dots(right[i, t], right[i, t1], right[i, s], right[i, s1])
                both = a * x
                if s1 > s:
                    both += b * y
                if t1 > t:
                    both += c * z
                if s1 > s and t1 > t:
                    both += d * w
                total += both if s == t else 2 * both
            lefts += a + d if t1 > t else a  # the last s was t
            rights += x + w if t1 > t else x
        squares[0, i], squares[1, i], squares[2, i] = max(total, 0.0), lefts, rights
