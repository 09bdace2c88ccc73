"""``sum_i weights_i rows_i`` in float64 in one pass over the rows, compiled.

Rows are read once, eight at a time, and added to a piece of the sum that stays in the cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plumbline.compiled import Together, compiled, in_threads

_PIECE = 4096  # of the sum: 32 KiB
_THREAD = 1 << 20  # numbers that a thread of its own pays for


def add_rows(
    rows: Tensor, weights: Tensor, total: Tensor, together: Together | None = None
) -> None:
    """Adds ``sum_i weights_i rows_i`` to ``total``.

    Args:
        rows: ``[B, n]`` on the processor, float32 or float64, row after row in memory.
        weights: ``[B]``, float64.
        total: ``[n]``, float64.
        together: Where to note the loop instead of running it.
    """
    values, factors, sums = rows.numpy(), weights.numpy(), total.numpy()

    def loop(start: int, stop: int) -> None:
        _add(values, factors, sums, start, stop)

    if together is None:
        in_threads(loop, len(sums), max(1, _THREAD // max(1, len(values))))
    else:
        together.add(loop, len(sums), cost=8 * rows.numel())


@compiled(
    "void(float32[:, ::1], float64[::1], float64[::1], int64, int64)",
    "void(float64[:, ::1], float64[::1], float64[::1], int64, int64)",
)
def _add(
    rows: NDArray[np.floating],
    weights: NDArray[np.float64],
    total: NDArray[np.float64],
    start: int,
    stop: int,
) -> None:
    by_eight = len(rows) - len(rows) % 8
    for first in range(start, stop, _PIECE):
        last = min(first + _PIECE, stop)
        piece = total[first:last]
        for i in range(0, by_eight, 8):
            w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            w4, w5, w6, w7 = weights[i + 4], weights[i + 5], weights[i + 6], weights[i + 7]
            r0, r1 = rows[i, first:last], rows[i + 1, first:last]
            r2, r3 = rows[i + 2, first:last], rows[i + 3, first:last]
            r4, r5 = rows[i + 4, first:last], rows[i + 5, first:last]
            r6, r7 = rows[i + 6, first:last], rows[i + 7, first:last]
            for j in range(len(piece)):
                piece[j] += ((w0 * r0[j] + w1 * r1[j]) + (w2 * r2[j] + w3 * r3[j])) + (
                    (w4 * r4[j] + w5 * r5[j]) + (w6 * r6[j] + w7 * r7[j])
                )
        for i in range(by_eight, len(rows)):
            weight, row = weights[i], rows[i, first:last]
            for j in range(len(piece)):
                piece[j] += weight * row[j]
