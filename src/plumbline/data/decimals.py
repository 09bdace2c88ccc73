"""Plain decimal numbers from text, as ``float`` reads them to the last bit, in a compiled loop.

Digits with a sign and a point, as most cells of a table are: their digits are an integer below
2^53 and what stands behind the point a power of ten up to 10^22, both exact in float64, so that one
division rounds as ``float`` does (Clinger 1990). Anything else is left to ``float``. The first call
imports numba, which takes half a second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from plumbline.compiled import compiled

_TENS = np.array([10.0**power for power in range(23)])
_LINE, _PLUS, _MINUS, _POINT, _ZERO = b"\n+-.0"
_DIGITS = 15  # fewer than 2^53


def decimals(cells: Sequence[str]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The cells as numbers, ``[R]``, and the places of those that are left to ``float``.

    An empty cell is NaN.
    """
    numbers = np.empty(len(cells))
    others = np.empty(len(cells), np.int64)
    text = ("\n".join(cells) + "\n").encode("utf-8", "surrogatepass")
    count, left = _compiled()(np.frombuffer(text, np.uint8), _TENS, numbers, others)
    if count != len(cells):  # a cell has several lines
        return numbers, np.arange(len(cells))
    return numbers, others[:left]


@functools.cache
def _compiled() -> Callable[..., Any]:
    """The loop: compiled when it is first needed, since every file of this folder is imported."""
    types = "Array(uint8, 1, 'C', readonly=True), f8[::1], f8[::1], i8[::1]"
    return compiled(f"UniTuple(int64, 2)({types})")(_read)


def _read(
    text: npt.NDArray[np.uint8],
    tens: npt.NDArray[np.float64],
    numbers: npt.NDArray[np.float64],
    others: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Reads the lines of a text; returns how many there are, and how many are no plain numbers."""
    count = left = start = 0
    for end in range(len(text)):
        if text[end] != _LINE:
            continue
        if count == len(numbers):
            return count + 1, left
        place = start
        signed = place < end and (text[place] == _MINUS or text[place] == _PLUS)
        negative = signed and text[place] == _MINUS
        if signed:
            place += 1
        whole, digits, behind, pointed = np.int64(0), 0, 0, False
        while place < end:
            digit = np.int64(text[place]) - _ZERO
            if 0 <= digit <= 9:
                whole = 10 * whole + digit
                digits += 1
                behind += pointed
            elif text[place] == _POINT and not pointed:
                pointed = True
            else:
                break
            if digits > _DIGITS:
                break
            place += 1
        if place == end and digits:
            value = whole / tens[behind]
            numbers[count] = -value if negative else value
        else:
            numbers[count] = np.nan
            if start < end:
                others[left] = count
                left += 1
        count += 1
        start = end + 1
    return count, left
