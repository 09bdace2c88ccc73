"""The loops over every value of the noise, in numpy: what `noise_loops_compiled` computes faster.

Both give the same bits: whatever is not exact is a fixed order of additions, multiplications and
divisions, which IEEE 754 rounds the same way everywhere. What they are for is said in
`discrete_gaussian` and `noise`.
"""

import math

import numpy as np
from numpy.typing import NDArray

CELL_BITS = 34
"""There are 2^CELL_BITS grid values in a cell, 64 cells to a standard deviation."""

GRID_BITS = 40
"""The grid has 2^GRID_BITS steps per standard deviation."""

ENTRIES_BITS = 15
"""There are 2^ENTRIES_BITS entries in the table of the mixture's first part."""

COLUMNS_BITS = 10
"""There are 2^COLUMNS_BITS columns in the alias table that proposes cells for the rest."""

TAYLOR = tuple(1 / math.factorial(n) for n in range(2, 12))

_CHUNK = 1 << 14  # a few vectors of so many values fit the cache
ENTRY_SHIFT = np.uint64(64 - ENTRIES_BITS)
COLUMN_SHIFT = np.uint64(64 - COLUMNS_BITS)
SIGN = np.uint64(1 << (63 - COLUMNS_BITS))
# Bits 1 to 34 are the place in a cell. With the exponent of 2^51 a float64's last bit counts a
# half, so these bits and a last bit of 1 are 2^51 + place + 1/2.
PLACE = np.uint64((2 << CELL_BITS) - 1)
_BASE = 2.0**51
_BASE_BITS = np.float64(_BASE).view(np.uint64) | np.uint64(1)


def first_part(words: NDArray[np.uint64], begins: NDArray[np.float64]) -> NDArray[np.int64]:
    """Overwrites `[n]` uniform words with float64 values of the first part, in grid steps.

    Args:
        words: from which the values are made, and where they are put.
        begins: `[2^15]`, where the cell of an entry begins, in grid steps; NaN for the rest.

    Returns:
        The places of NaNs, whose values belong to the rest.
    """
    values = words.view(np.float64)
    rest = [np.empty(0, np.int64)]
    for start in range(0, len(words), _CHUNK):
        word, value = words[start : start + _CHUNK], values[start : start + _CHUNK]
        begin = begins[(word >> ENTRY_SHIFT).view(np.int64)]
        np.bitwise_and(word, PLACE, out=word)
        np.bitwise_or(word, _BASE_BITS, out=word)
        value -= _BASE
        value += begin
        rest.append(np.isnan(value).nonzero()[0] + start)
    return np.concatenate(rest)


def accepted(
    words: NDArray[np.uint64],
    threshold: NDArray[np.uint64],
    alias: NDArray[np.int64],
    depth: NDArray[np.float64],
    out: NDArray[np.float64],
) -> int:
    """Turns `[n, 3]` uniform words into candidates for the rest, and keeps those it accepts.

    Args:
        words: three for each candidate.
        threshold: `[1024]`, below which a column proposes the cell of its own number.
        alias: `[1024]`, the cell that it proposes otherwise.
        depth: `[1024]`, what of a cell's largest probability belongs to the rest.
        out: where values go in grid steps, until it is full.

    Returns:
        How many values were put there.
    """
    choice, place, accept = words.T
    # Which cell: an alias table (Walker 1977), ten bits of `place` and all of `choice`.
    column = (place >> COLUMN_SHIFT).view(np.int64)
    cell = np.where(choice < threshold[column], column, alias[column])
    # Where in the cell, from the edge that is nearer to zero, in the middle of a grid step.
    steps = ((place & PLACE) | _BASE_BITS).view(np.float64)
    steps -= _BASE
    offset = steps * 2.0**-GRID_BITS
    # x = (z^2 - l^2) / 2 without cancellation: the sum is exact.
    x = offset * 0.5
    x += cell * 2.0 ** (CELL_BITS - GRID_BITS)
    x *= offset
    kept = (accept * 2.0**-64 * depth[cell] > fall(x)).nonzero()[0][: len(out)]
    value = cell[kept] * 2.0**CELL_BITS + steps[kept]
    out[: len(kept)] = np.where(place[kept] & SIGN, -value, value)
    return len(kept)


def fall(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 - exp(-x) for 0 < x < 0.15, to a relative 1.5 x 2^-53.

    The Taylor series as x - x w, with w < x / 2: of the rounding of w little remains.
    """
    w = x * TAYLOR[-1]
    for coefficient in reversed(TAYLOR[:-1]):
        np.subtract(coefficient, w, out=w)
        w *= x
    w *= x
    return np.subtract(x, w, out=w)


def added(
    value: NDArray[np.floating], noise: NDArray[np.float64], step: float, out: NDArray[np.floating]
) -> bool:
    """Puts a value on the grid, adds noise in grid steps, `[n]`, and casts the sum into `out`.

    Returns:
        Whether all sums are finite.
    """
    finite = True
    with np.errstate(all="ignore"):
        for start in range(0, len(value), _CHUNK):
            part = slice(start, start + _CHUNK)
            total = value[part].astype(np.float64)
            np.rint(np.divide(total, step, out=total), out=total)
            total += noise[part]
            finite = finite and math.isfinite(total.sum())
            np.multiply(total, step, out=total)
            out[part] = total
    return finite
