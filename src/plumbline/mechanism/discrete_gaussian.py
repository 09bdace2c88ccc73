"""Samples a Gaussian on a fixed grid, with a known bound on how inexact it is.

A float64 Gaussian from Box-Muller or an inverse cdf has holes: values it can never take, in a
pattern that shows through after the noise is added. Here the noise is an *integer*: the discrete
Gaussian of Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy", 2020) on
the half-integers, with standard deviation 2^40 grid cells, drawn by rejection from a piecewise
uniform proposal, as in Karney ("Sampling exactly from the normal distribution", 2016).

Guarantee. Every grid value with |z| < 9.5 can occur, and its probability is the discrete Gaussian's
times a factor within 1 +- 2^-50 (the proposal's offset within a cell is exact; the acceptance
probability is computed in float64, with an `exp` good to one unit in the last place), up to a total
variation of 2^-65 per value (64-bit table of cells, tail cut at 9.5 standard deviations). At this
granularity the discrete Gaussian and a continuous Gaussian rounded to the grid differ by a factor
within 1 +- 2^-70, so the accounting of the continuous Gaussian mechanism applies.
"""

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
from numpy.typing import NDArray

from plumbline.mechanism.random_source import Stream

GRID_BITS = 40
"""The grid has 2^GRID_BITS cells per standard deviation."""

REACH = 9.5
"""No value is further out than this many standard deviations (the mass beyond is 2e-21)."""

_CELLS_PER_UNIT = 16  # proposal cells per standard deviation: about 2.5 % of candidates rejected
_CELLS = int(REACH * _CELLS_PER_UNIT)
_COLUMNS = 256  # of the alias table, chosen by one byte
_OFFSET_BITS = GRID_BITS - 4  # grid values in a cell of width 1/16
_BLOCK = 8192  # candidates at a time: fits the cache; part of the definition of the output

_LOW_BYTE = np.uint64(_COLUMNS - 1)
_OFFSET_SHIFT = np.uint64(8)
_OFFSET_MASK = np.uint64((1 << _OFFSET_BITS) - 1)
_SIGN = np.uint64(1 << 63)
_ACCEPT_SHIFT = np.uint64(11)


def standard_normal(stream: Stream, n: int) -> NDArray[np.float64]:
    """Draws `n` independent standard Gaussians on the grid, `[n]`.

    Every value is an odd multiple of `2^-(GRID_BITS + 1)`, exact in float64. The first values do
    not depend on `n`. Time does not depend on the values drawn, except through the number of
    rejected candidates.

    Args:
        stream: the source of randomness; it is read in blocks, so do not use it further.
        n: the number of values.
    """
    threshold, alias, left_edge = _table()
    result = np.empty(n)
    done = 0
    while done < n:
        words = stream.uint64(3 * _BLOCK).reshape(3, _BLOCK)
        kept = _candidates(words, threshold, alias, left_edge)[: n - done]
        result[done : done + len(kept)] = kept
        done += len(kept)
    return result


def _candidates(
    words: NDArray[np.uint64],
    threshold: NDArray[np.uint64],
    alias: NDArray[np.intp],
    left_edge: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Turns `[3, n]` uniform words into n candidates and returns those that are accepted."""
    choice, place, accept = words
    # Which cell: an alias table (Walker 1977), one byte of `place` and all of `choice`.
    column = (place & _LOW_BYTE).view(np.int64)
    cell = np.where(choice < threshold[column], column, alias[column])
    # Where in the cell: 36 more bits of `place`, at the middle of a grid step; all exact.
    offset = ((place >> _OFFSET_SHIFT) & _OFFSET_MASK).view(np.int64) * 2.0**-GRID_BITS
    offset += 2.0 ** -(GRID_BITS + 1)
    left = left_edge[cell]
    # Accept with probability exp(-(z^2 - left^2) / 2), written without cancellation.
    exponent = offset * -0.5
    exponent -= left
    exponent *= offset
    chance = np.exp(exponent, out=exponent)
    accepted = (accept >> _ACCEPT_SHIFT).view(np.int64) * 2.0**-53 < chance
    value = np.add(left, offset, out=left)
    value.view(np.uint64)[:] |= place & _SIGN
    kept: NDArray[np.float64] = value[accepted]
    return kept


@cache
def _table() -> tuple[NDArray[np.uint64], NDArray[np.intp], NDArray[np.float64]]:
    """The alias table of the proposal: cell j of width 1/16 has weight exp(-(j/16)^2 / 2)."""
    with localcontext() as context:
        context.prec = 60
        weight = [(-((Decimal(j) / _CELLS_PER_UNIT) ** 2) / 2).exp() for j in range(_CELLS)]
        total = sum(weight)
        full = 1 << 64  # the capacity of one column
        shares = [int((w / total * full * _COLUMNS).to_integral_value()) for w in weight]
    shares += [0] * (_COLUMNS - _CELLS)
    shares[0] += full * _COLUMNS - sum(shares)
    alias = list(range(_COLUMNS))
    threshold = [0] * _COLUMNS
    short = [j for j, share in enumerate(shares) if share < full]
    long = [j for j, share in enumerate(shares) if share > full]
    while short:
        column = short.pop()
        donor = long[-1]
        threshold[column], alias[column] = shares[column], donor
        shares[donor] -= full - shares[column]
        if shares[donor] <= full:
            long.pop()
            if shares[donor] < full:
                short.append(donor)
    # The rest fills its column exactly and is its own alias.
    left_edge = np.arange(_COLUMNS) / _CELLS_PER_UNIT
    return np.array(threshold, dtype=np.uint64), np.array(alias, dtype=np.intp), left_edge
