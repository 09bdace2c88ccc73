"""From the columns of a table to numbers: categories, scales, and a split by seed.

Nothing here looks for categories or statistics by itself: they are arguments, so that each data set
can say where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from plumbline.data.files import DataError
from plumbline.data.table_cells import unit_range

Where = Callable[[int], str]


def row_number(row: int) -> str:
    """The name of a row, counted from 1."""
    return f"row {row + 1}"


def codes(
    column: Sequence[str], values: Sequence[str], name: str, where: Where = row_number
) -> Tensor:
    """The position of each cell among ``values``: ``[n]`` of int64.

    Args:
        column: The cells, ``[n]``.
        values: The allowed values.
        name: The column's name, for errors.
        where: Names the row of a position in ``column``.

    Raises:
        DataError: Naming the first row with another value.
    """
    places = {value: place for place, value in enumerate(values)}
    try:
        coded = np.array(list(map(places.__getitem__, column)), np.int64)
    except KeyError:
        row = next(row for row, cell in enumerate(column) if cell not in places)
        raise DataError(
            f"The column '{name}' has a value in {where(row)} that is none of its {len(values)}. "
            "Declare every value that it can have, or mend the cell."
        ) from None
    return torch.from_numpy(coded)


def one_hot(
    column: Sequence[str], values: Sequence[str], name: str, where: Where = row_number
) -> Tensor:
    """A one at each cell's position among ``values``: ``[n, len(values)]`` of float32."""
    coded = codes(column, values, name, where)
    rows = torch.zeros(len(coded), len(values))
    return rows.scatter_(1, coded[:, None], 1.0)


def to_unit_range(column: Tensor, ends: tuple[float, float]) -> Tensor:
    """Maps the range ``ends`` to ``[-1, 1]``; values outside go to the nearer end."""
    return torch.from_numpy(unit_range(column.double().numpy(), ends))


def from_unit_range(column: Tensor, ends: tuple[float, float]) -> Tensor:
    """Maps ``[-1, 1]`` back to the range ``ends``, and what lies outside along with it."""
    low, high = ends
    return (low + high) / 2 + column.double() * ((high - low) / 2 or 1.0)


def split(records: int, test_fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The indices of the training and of the test records, drawn without replacement."""
    check_share("test_fraction", test_fraction)
    order = torch.randperm(records, generator=generator)
    train = records - round(test_fraction * records)
    return order[:train], order[train:]


def check_share(name: str, value: float) -> None:
    """Refuses a share that leaves nothing on one side."""
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value!r}; it must be between 0 and 1, such as 0.2.")


def check_one_of(name: str, value: object, allowed: Mapping[str, object] | Sequence[str]) -> None:
    """Refuses an option that is not allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
