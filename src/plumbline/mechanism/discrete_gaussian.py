"""Samples a Gaussian on a fixed grid, with a known bound on how inexact it is.

A float64 Gaussian from Box-Muller or an inverse cdf has holes: values it can never take, in a
pattern that shows through after the noise is added. Here the noise is an *integer*: the discrete
Gaussian of Canonne, Kamath and Steinke ("The Discrete Gaussian for Differential Privacy", 2020) on
the half-integers, with standard deviation 2^40 grid steps.

It is drawn as a mixture. Let p(z) be its probabilities, for |z| < 9.5, and cut the axis into cells
of 2^34 grid values, 64 to a standard deviation. Below p, cell c has room for n_c uniform layers of
mass 2^-15 each; n_c is the largest such number. So 15 random bits choose one of 2^15 entries of a
table, which name cell c exactly n_c times, and 34 more bits choose the value in the cell: this
gives 98.6 % of all values from one 64-bit word. The other entries say that the value comes from
the rest, r(z) = p(z) - n_c 2^-49, by rejection as in Karney ("Sampling exactly from the normal
distribution", 2016). With l the edge of a cell that is nearer to zero, r is at most p(l) d_c there,
where d_c = 1 - n_c 2^-49 / p(l). A cell is proposed with weight p(l) d_c, and in it a value z with
equal chances; with x = (z^2 - l^2) / 2, so that p(z) = p(l) exp(-x), z is accepted with probability
r(z) / (p(l) d_c) = 1 - (1 - exp(-x)) / d_c.

Guarantee. Every grid value with |z| < 9.5 can occur, and its probability is the discrete Gaussian's
times a factor within 1 +- 2^-50, up to a total variation of 2^-65 per value. The first part of the
mixture, and the choice of a value in a cell, are exact. For the rest, (1 - exp(-x)) / d_c is
compared with a uniform number in float64, u = 2^-53, to a relative 6 u: x to u, `fall(x)` to 1.5 u,
the uniform number, d_c and their product to u each. This moves the probability of z, relative to
p(z), by at most 6 u (1 - exp(-x)) p(l) / p(z) < u, as x < 0.15, and the rate of acceptance, 0.68,
which scales the whole rest, by a relative 6 u (1 - 0.68) / 0.68 < 3 u: together by less than 4 u =
2^-51. The total variation is that of cutting the tail at 9.5 (2^-68) and of a table that proposes
cells with 74 bits (2^-70). At this granularity the discrete Gaussian and a continuous Gaussian
rounded to the grid differ by a factor within 1 +- 2^-70, so the accounting of the continuous
Gaussian mechanism applies.

A stream's words are used in blocks: four are the key of the stream that the block's rest comes
from, and each of the others makes one value. So what a value is depends neither on how many there
are nor on who computes it: in how many threads, compiled or not (`noise_loops`), on what machine.
"""

import threading
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.compiled import at_once, worth_loading
from plumbline.mechanism import noise_loops
from plumbline.mechanism.noise_loops import CELL_BITS, COLUMNS_BITS, ENTRIES_BITS, GRID_BITS
from plumbline.mechanism.random_source import Stream

__all__ = ["BLOCK", "GRID_BITS", "REACH", "each_block", "loops", "standard_normal"]

REACH = 9.5
"""No value is further out than this many standard deviations (the mass beyond is 2e-21)."""

BLOCK = 1 << 16
"""How many values are drawn at a time, and share a key for their rest."""

_CELLS_PER_UNIT = 1 << (GRID_BITS - CELL_BITS)
_CELLS = int(REACH * _CELLS_PER_UNIT)
_COLUMNS = 1 << COLUMNS_BITS
_KEY_WORDS = 4
_MANY = 1 << 16  # values, from which on compiled loops pay for being loaded
_ROOT_TWO_PI = Decimal("2.50662827463100050241576528481104525300698674060993831662992358")


def standard_normal(stream: Stream, n: int, threads: int = 1) -> NDArray[np.float64]:
    """Draws `n` independent standard Gaussians on the grid, `[n]`.

    Every value is an odd multiple of `2^-(GRID_BITS + 1)`, exact in float64. The first values do
    not depend on `n`, and none on `threads`. Time does not depend on the values drawn, except
    through how many come from the rest and how many candidates it rejects.

    Args:
        stream: the source of randomness; do not use it further.
        n: the number of values.
        threads: how many threads draw, at most.
    """
    result = np.empty(n)

    def keep(start: int, noise: NDArray[np.float64]) -> None:
        np.multiply(noise, 2.0**-GRID_BITS, out=result[start : start + len(noise)])

    each_block(stream, n, keep, threads)
    return result


def each_block(
    stream: Stream, n: int, use: Callable[[int, NDArray[np.float64]], None], threads: int = 1
) -> None:
    """Draws the values of `standard_normal` and hands them on while they are in the cache.

    Args:
        stream: the source of randomness; do not use it further.
        n: the number of values.
        use: called once for every block with the place of its first value and the values in grid
            steps, which it may overwrite and must not keep; in any order, and by several threads.
        threads: how many threads draw, at most.
    """
    starts = iter(range(0, n, BLOCK))
    turn = threading.Lock()
    chosen = loops(n)

    def work() -> None:
        memory = _free.pop() if _free else np.empty(_KEY_WORDS + BLOCK, np.uint64)
        while True:
            with turn:  # block i gets the i-th part of the stream, in whatever thread
                start = next(starts, None)
                if start is None:
                    break
                words = stream.fill(memory[: _KEY_WORDS + min(BLOCK, n - start)])
            use(start, _drawn(words, chosen))
        _free.append(memory)

    at_once([work] * max(1, min(threads, n // BLOCK)))


# Memory that threads work in, kept from draw to draw: new pages would cost as much as the drawing.
_free: list[NDArray[np.uint64]] = []


def loops(n: int) -> ModuleType:
    """The loops for `n` values: compiled if they are many, or the run is long.

    Where numba cannot be imported, they are numpy's, which give the same bits.
    """
    return _compiled_loops() if n >= _MANY or worth_loading() else noise_loops


@cache
def _compiled_loops() -> ModuleType:
    try:
        from plumbline.mechanism import noise_loops_compiled
    except ImportError:
        return noise_loops
    return noise_loops_compiled


def _drawn(words: NDArray[np.uint64], loops: ModuleType) -> NDArray[np.float64]:
    """Turns a key and `[n]` uniform words into n values in grid steps, in the words' place."""
    key, words = words[:_KEY_WORDS].astype("<u8").tobytes(), words[_KEY_WORDS:]
    rest = loops.first_part(words, _mixture().begins)
    values = words.view(np.float64)
    if len(rest):
        values[rest] = _rest(Stream(key, secure=False), len(rest), loops)
    return values


def _rest(stream: Stream, n: int, loops: ModuleType) -> NDArray[np.float64]:
    """Draws n values of the mixture's second part, in grid steps."""
    _, *tables = _mixture()
    values = np.empty(n)
    found = 0
    while found < n:
        candidates = (n - found) * 3 // 2 + 16  # mostly enough
        words = stream.uint64(3 * candidates).reshape(-1, 3)
        found += loops.accepted(words, *tables, values[found:])
    return values


class _Mixture(NamedTuple):
    """The tables that `noise_loops` reads; cells are counted from zero outwards."""

    begins: NDArray[np.float64]
    threshold: NDArray[np.uint64]
    alias: NDArray[np.int64]
    depth: NDArray[np.float64]


@cache
def _mixture() -> _Mixture:
    with localcontext() as context:
        context.prec = 60
        # What the cell would hold in entries if p were all over it as it is at an edge.
        unit = Decimal(1 << ENTRIES_BITS) / (_CELLS_PER_UNIT * _ROOT_TWO_PI)
        edge = [
            unit * (-((Decimal(j) / _CELLS_PER_UNIT) ** 2) / 2).exp() for j in range(_CELLS + 1)
        ]
        entries = [int(outer) for outer in edge[1:]]
        depth = [1 - own / inner for own, inner in zip(entries, edge, strict=False)]
        weight = [inner * d for inner, d in zip(edge, depth, strict=False)]
        total = sum(weight)
        shares = [int((w / total * (_COLUMNS << 64)).to_integral_value()) for w in weight]
    named = [j * 2.0**CELL_BITS for j in range(_CELLS)]
    named += [-edge - 2.0**CELL_BITS for edge in named]
    begins = np.full(1 << ENTRIES_BITS, np.nan)
    begins[: 2 * sum(entries)] = np.repeat(named, entries + entries)
    all_depths = np.ones(_COLUMNS)
    all_depths[:_CELLS] = [float(d) for d in depth]
    return _Mixture(begins, *_alias(shares), all_depths)


def _alias(shares: list[int]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The alias table of cells with these shares of all columns, each of capacity 2^64."""
    full = 1 << 64
    shares = shares + [0] * (_COLUMNS - len(shares))
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
    return np.array(threshold, dtype=np.uint64), np.array(alias, dtype=np.int64)
