"""One sensitive feature: the names of its groups, and each record's group.

Records whose group is not known (None, NaN, pandas' NA, or the number -1) form a group of their
own, called "unknown".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from plumbline.fairness.outcomes import Integers, as_array

UNKNOWN = "unknown"

Values = Sequence[Any] | NDArray[Any] | Tensor
"""One value per record, ``[n]``: numbers, strings or booleans. May be a pandas Series."""

FeatureNames = Sequence[str] | Mapping[Any, str]
"""Names of a feature's groups: ``("male", "female")`` or ``{0: "male", 1: "female"}``."""


def groups_of_feature(
    where: str, values: Any, records: int, names: FeatureNames | None
) -> tuple[list[str], Integers]:
    """The names of a feature's groups, and the position of each record's group in them, ``[n]``.

    Args:
        where: The name of the values in errors.
        values: ``Values``, in any form that pandas accepts.
        records: n.
        names: The groups' names by value; if -1 has a name, it is a group like any other.
    """
    series = _one_column(where, values)
    if len(series) != records:
        raise ValueError(
            f"{where} has {len(series)} values for {records} test records; give one per record."
        )
    by_value: dict[Any, str] | None = None
    if names is not None:
        by_value = dict(names if isinstance(names, Mapping) else enumerate(names))
    found, distinct = pd.factorize(series)
    kinds = [_python(value) for value in distinct]
    known = [value for value in kinds if value != -1 or -1 in (by_value or {})]
    if by_value is None and -1 in kinds and known == [1]:
        raise ValueError(
            f"{where} has the values -1 and 1, and -1 means that a record's group is unknown. If "
            "it is a group here, give names, such as names={-1: 'without', 1: 'with'}."
        )
    labels = {}
    for value in known:
        first = int(np.flatnonzero(found == kinds.index(value))[0])
        labels[value] = _label(where, value, first, by_value)
    declared = [] if by_value is None else by_value.values()
    order = list(dict.fromkeys([*declared, *(labels[value] for value in _sorted(known))]))
    if len(known) < len(kinds) or (found < 0).any():
        order = [label for label in order if label != UNKNOWN] + [UNKNOWN]
    # factorize's -1, a missing value, points to the last entry.
    table = [order.index(labels.get(value, UNKNOWN)) for value in kinds]
    table.append(order.index(UNKNOWN) if UNKNOWN in order else 0)
    return order, np.asarray(table, np.int64)[found]


def _label(where: str, value: Any, record: int, names: Mapping[Any, str] | None) -> str:
    if isinstance(value, float):
        raise ValueError(
            f"{where} of record {record} is a number that is not whole; give groups, by whole "
            "number or by name. Put a continuous feature, such as age, into bins first."
        )
    if names is not None and value not in names:
        raise ValueError(
            f"{where} of record {record} has no name; names has {list(names)}. Name every value, "
            "or give no names."
        )
    return str(value) if names is None else names[value]


def _one_column(where: str, values: Any) -> pd.Series:
    values = as_array(values) if isinstance(values, Tensor) else values
    if len(shape := np.shape(values)) != 1:
        raise ValueError(
            f"{where} has shape {shape}; give one value per record, [n]. Give several features as "
            "a mapping from their names to their values."
        )
    if isinstance(values, pd.Series | np.ndarray):
        return pd.Series(values)
    # As objects: numpy would turn the None in a list of strings into the string "None".
    items = [value.item() if isinstance(value, Tensor) else value for value in values]
    return pd.Series(items, dtype=object)


def _python(value: Any) -> Hashable:
    """A value without its numpy type, whole numbers as int: 1.0 is the group 1."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sorted(values: list[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:  # numbers beside strings
        return sorted(values, key=str)
