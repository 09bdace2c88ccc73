"""Measured numbers that may not be there: the reason instead of NaN; results as plain values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Undefined:
    """What a number is when it cannot be: the reason, in words."""

    reason: str

    def __str__(self) -> str:
        return f"undefined: {self.reason}"


Number = float | Undefined


def to_json(value: Any) -> Any:
    """A result as JSON-able values: fields by name, undefined numbers as their reasons.

    JSON has no infinity: an infinite epsilon is the text "inf", and what is no number "nan".
    A class whose answers are not all fields says itself what it is, in a method ``to_json``.
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
