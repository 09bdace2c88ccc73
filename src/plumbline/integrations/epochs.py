"""Epochs of a run that draws Poisson batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plumbline.sampling import group_by_user


def epoch_steps(
    dataset: Any, expected: int, records: int | None, settings: Mapping[str, Any]
) -> int:
    """In how many steps every record (or user) is drawn once on average, rounded up.

    Args:
        dataset: The data set.
        expected: The expected batch size.
        records: The number of records (or users), if it is public knowledge.
        settings: Further arguments of ``make_private``.
    """
    users = settings.get("user_ids")
    if records is None:
        records = len(dataset) if users is None else group_by_user(users).count
    return math.ceil(records / expected)
