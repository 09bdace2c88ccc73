"""Sweeps: the rows of a recipe's methods, one for each value of what is swept.

``[sweep]`` with ``radius = [0.01, 0.03]`` and ``learning_rate = [1, 2]`` makes four rows of every
method that has a radius, and two of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline import methods
from plumbline.checks import is_number
from plumbline.registry import options_of

RATE = "learning_rate"


def swept_rows(rows: Any, sweep: Any) -> Any:
    """The rows of methods, as a file has them, with each combination of what is swept.

    What is no row stays as it is: the recipe refuses it by name.

    Raises:
        ValueError: If the sweep is not lists of numbers by setting, or no method has a setting.
    """
    if not isinstance(sweep, Mapping) or not all(
        isinstance(values, list | tuple) and values and all(map(is_number, values))
        for values in sweep.values()
    ):
        raise ValueError(f"sweep is {sweep!r}; give lists of numbers, such as radius = [0.01, 0.1]")
    if not isinstance(rows, list | tuple):
        return rows
    made, used = list[Any](), set[str]()
    for row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("settings", {}), Mapping):
            made.append(row)
            continue
        own = [name for name in sweep if name == RATE or name in _settings(row)]
        used |= set(own)
        for values in itertools.product(*(sweep[name] for name in own)):
            made.append(_with(row, dict(zip(own, values, strict=True))))
    if unused := [name for name in sweep if name not in used]:
        raise ValueError(f"sweep names {', '.join(unused)}, which is no setting of any method")
    return made


def _with(row: Mapping[str, Any], values: dict[str, float]) -> Mapping[str, Any]:
    if not values:
        return row
    settings = {**row.get("settings", {}), **{k: v for k, v in values.items() if k != RATE}}
    rate = {RATE: values[RATE]} if RATE in values else {}
    return {**row, **rate, "settings": settings, "swept": list(values)}


def _settings(row: Mapping[str, Any]) -> Sequence[str]:
    """What can be set of a row's method; nothing of one that is refused later."""
    try:
        return list(options_of(methods.find(row["name"]).make))
    except (TypeError, KeyError, ValueError):
        return ()
