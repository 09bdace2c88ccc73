"""What a fairness number is where there is none, and that epsilon does not cover it.

Every number here comes from test records as they are. Epsilon covers the training records only:
whoever shows these numbers for records that are private too must say so (``NOT_COVERED``).
"""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.results import Number, Undefined, to_json

NOT_COVERED = "computed from the test records without noise: not covered by epsilon"


EMPTY = Undefined("the group has no records")


def defined(values: Mapping[str, Number]) -> dict[str, float]:
    """The values that are numbers."""
    return {key: value for key, value in values.items() if not isinstance(value, Undefined)}


__all__ = ["EMPTY", "NOT_COVERED", "Number", "Undefined", "defined", "to_json"]
