"""What a fairness number is where there is none, and results as plain values.

Every number here comes from test records as they are. Epsilon covers the training records only:
whoever shows these numbers for records that are private too must say so (``NOT_COVERED``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

NOT_COVERED = "computed from the test records without noise: not covered by epsilon"


@dataclasses.dataclass(frozen=True)
class Undefined:
    """What a number is when it cannot be: the reason, in words."""

    reason: str

    def __str__(self) -> str:
        return f"undefined: {self.reason}"


Number = float | Undefined

EMPTY = Undefined("the group has no records")


def defined(values: Mapping[str, Number]) -> dict[str, float]:
    """The values that are numbers."""
    return {key: value for key, value in values.items() if not isinstance(value, Undefined)}


def plain(value: Any) -> Any:
    """A result as JSON-able values: fields by name, undefined numbers as their reasons.

    A class whose answers are not all fields says itself what it is, in a method ``plain``.
    """
    if isinstance(value, Undefined):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "plain"):
            return value.plain()
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value
