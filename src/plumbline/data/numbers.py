"""The cells of a column as numbers, in a compiled loop once a process has read many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from plumbline.data import table_cells

_MANY = 2_000_000  # cells, from which on a compiled loop pays for itself
_read = 0  # in this process so far; the numbers are the same either way


def numbers_of(cells: Sequence[str]) -> npt.NDArray[np.float64]:
    """The cells as numbers, ``[R]``; NaN where a cell is no finite number."""
    global _read
    _read += len(cells)
    if _read <= _MANY:
        return table_cells.numbers_of(cells)
    from plumbline.data.decimals import decimals

    numbers, others = decimals(cells)
    if len(others):
        numbers[others] = table_cells.numbers_of([cells[place] for place in others.tolist()])
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers
