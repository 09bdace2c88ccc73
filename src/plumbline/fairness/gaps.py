"""How far apart groups are, and which groups are judged.

A gap is the largest difference between two groups, as in fairlearn's ``difference()``; for two
groups it is ``pi_{a,b} = |pi_a - pi_b|`` (Gradient Misalignment, section 3.1). Unlike fairlearn's,
it leaves out groups that are too small to judge or have no value, names them, and names the two
groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plumbline.results import Number, Undefined


@dataclass(frozen=True)
class Gap:
    """The largest difference between two groups.

    Attributes:
        value: The difference, at least zero.
        highest: The group with the highest value; None where there is no gap.
        lowest: The group with the lowest.
        left_out: Groups that took no part: too small, or without a value.
    """

    value: Number
    highest: str | None
    lowest: str | None
    left_out: tuple[str, ...]


def gap_of(values: Mapping[str, Number], judged: tuple[str, ...]) -> Gap:
    """The gap of the values by group, over the groups ``judged``."""
    known = _known(values, judged)
    left_out = tuple(group for group in values if group not in known)
    if len(known) < 2:
        reason = (
            f"{len(known)} of {len(values)} groups are large enough and have a value; a gap needs 2"
        )
        return Gap(Undefined(reason), None, None, left_out)
    highest, lowest = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    return Gap(known[highest] - known[lowest], highest, lowest, left_out)


def worst_of(
    values: Mapping[str, Number],
    judged: tuple[str, ...],
    better: Literal["higher", "lower"] | None,
) -> str | Undefined:
    """The group with the worst value, over the groups ``judged``; of equal ones the first."""
    known = _known(values, judged)
    if better is None:
        return Undefined("neither a high nor a low value is better")
    if not known:
        return Undefined("no group is large enough and has a value")
    return (min if better == "higher" else max)(known, key=known.__getitem__)


def judged_of(sizes: Mapping[str, int], minimum_size: int) -> tuple[str, ...]:
    """The groups that are large enough to judge."""
    return tuple(group for group, size in sizes.items() if size >= minimum_size)


def too_small_of(sizes: Mapping[str, int], minimum_size: int) -> tuple[str, ...]:
    """The groups that are not."""
    return tuple(group for group, size in sizes.items() if size < minimum_size)


def _known(values: Mapping[str, Number], judged: tuple[str, ...]) -> dict[str, float]:
    return {
        group: value
        for group, value in values.items()
        if group in judged and not isinstance(value, Undefined)
    }
