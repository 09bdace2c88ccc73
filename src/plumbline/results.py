"""Numbers that may be undefined, with the reason instead of NaN; results as JSON values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Undefined:
    """Stands for a number that is not defined, and says why."""

    reason: str

    def __str__(self) -> str:
        return f"undefined: {self.reason}"


Number = float | Undefined


def minus(first: Number, second: Number) -> Number:
    """The difference; if one of the two is undefined, that."""
    if isinstance(first, Undefined):
        return first
    return second if isinstance(second, Undefined) else first - second


def to_json(value: Any) -> Any:
    """A result as JSON-able values: fields by name, undefined numbers as their reasons.

    JSON has no infinity or NaN: they become the texts "inf" and "nan". A class whose results are
    not all fields defines its own method ``to_json``.
    """
    if isinstance(value, Undefined):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "to_json"):
            return value.to_json()
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist())
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
