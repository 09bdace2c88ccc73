"""The threshold attack on membership: whose loss is small was trained on (Yeom et al. 2018).

For all records and for each group: how well losses tell members from others, with percentile
intervals over resampled records. Differential privacy bounds the worst record alike in every group;
how well an actual attack does may differ between groups, and this is where it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plumbline.checks import check_count
from plumbline.fairness import MINIMUM_SIZE, Number, Undefined, group_records
from plumbline.fairness.groups import Names, SensitiveFeatures

Floats = NDArray[np.float64]

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
MEASURES = ("auc", "balanced accuracy", *(f"TPR at FPR {rate:g}" for rate in FALSE_POSITIVE_RATES))
"""``auc``: how likely a member's loss is below another's. ``balanced accuracy``: of calling the
half with the smaller losses members. ``TPR at FPR f``: the share of members that are found where f
of the others are taken for members."""


@dataclass(frozen=True)
class Interval:
    """A percentile interval.

    Attributes:
        low: Its lower end.
        high: Its upper end.
        replicates: The number of resamples it is taken over.
    """

    low: float
    high: float
    replicates: int


@dataclass(frozen=True)
class Attack:
    """How well the attack does on some records.

    Attributes:
        members: How many were trained on.
        others: How many were not.
        values: Of each of ``MEASURES``.
        intervals: Of each of them.
    """

    members: int
    others: int
    values: Mapping[str, Number]
    intervals: Mapping[str, Interval | Undefined]


@dataclass(frozen=True)
class Membership:
    """How well the attack does on all records, and on each group.

    Attributes:
        overall: On all records.
        by_group: On the members and others of each group.
        level: The intervals' nominal coverage.
        too_small: Groups with too few members or others to judge.
    """

    overall: Attack
    by_group: Mapping[str, Attack]
    level: float
    too_small: tuple[str, ...]


def membership(
    losses_in: ArrayLike,
    losses_out: ArrayLike,
    *,
    generator: np.random.Generator,
    groups_in: SensitiveFeatures | None = None,
    groups_out: SensitiveFeatures | None = None,
    names: Names | None = None,
    minimum_size: int = MINIMUM_SIZE,
    replicates: int = 200,
    level: float = 0.95,
) -> Membership:
    """Attacks a model by its losses.

    Args:
        losses_in: Of records that were trained on, ``[n]``.
        losses_out: Of records of the same kind that were not, ``[m]``.
        generator: Where resamples come from.
        groups_in: The group of each member, ``[n]``, if there are groups.
        groups_out: The group of each other record, ``[m]``.
        names: The groups' names, as in ``plumbline.fairness.evaluate``.
        minimum_size: Groups with fewer members or others are too small to judge.
        replicates: The number of resamples.
        level: The intervals' nominal coverage.
    """
    check_count("replicates", replicates)
    check_count("minimum_size", minimum_size)
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; it must be between 0 and 1, such as 0.95.")
    inside, outside = _losses("losses_in", losses_in), _losses("losses_out", losses_out)
    if (groups_in is None) != (groups_out is None):
        raise ValueError("groups_in and groups_out belong together; give both, or neither.")

    def attack(own: Floats, other: Floats) -> Attack:
        return _attack(own, other, generator, replicates, level)

    by_group: dict[str, Attack] = {}
    if groups_in is not None and groups_out is not None:
        first = group_records(groups_in, len(inside), names)
        second = group_records(groups_out, len(outside), names)
        for label in first.labels:
            other = second.rows(label) if label in second.labels else np.zeros(0, np.int64)
            by_group[label] = attack(inside[first.rows(label)], outside[other])
    small = [name for name, one in by_group.items() if min(one.members, one.others) < minimum_size]
    return Membership(attack(inside, outside), by_group, level, tuple(small))


def _attack(
    inside: Floats, outside: Floats, generator: np.random.Generator, replicates: int, level: float
) -> Attack:
    if not len(inside) or not len(outside):
        none = Undefined("there is no member, or nobody else")
        return Attack(len(inside), len(outside), dict.fromkeys(MEASURES, none), {})
    # Only the order of losses counts: how many of either kind there are at each, smallest first.
    _, place = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    size = int(place.max()) + 1
    places = place[: len(inside)], place[len(inside) :]
    values = _measures(*(np.bincount(own, minlength=size) for own in places))
    drawn = []
    for _ in range(replicates):
        again = [own[generator.integers(len(own), size=len(own))] for own in places]
        drawn.append(_measures(*(np.bincount(own, minlength=size) for own in again)))
    ends = [(1 - level) / 2, (1 + level) / 2]
    intervals: dict[str, Interval | Undefined] = {}
    for name, value in values.items():
        if isinstance(value, Undefined):  # then it is in every resample: they have the same sizes
            intervals[name] = value
        else:
            low, high = np.quantile([one[name] for one in drawn], ends)
            intervals[name] = Interval(float(low), float(high), replicates)
    return Attack(len(inside), len(outside), values, intervals)


def _measures(inside: NDArray[np.int64], outside: NDArray[np.int64]) -> dict[str, Number]:
    """The measures of how many members and others there are at each loss, ``[k]`` each."""
    found, wrong = np.cumsum(inside) / inside.sum(), np.cumsum(outside) / outside.sum()
    beyond = 1 - wrong + outside / outside.sum() / 2  # a tie counts half
    values: dict[str, Number] = {"auc": float((inside / inside.sum()) @ beyond)}
    half = int(np.argmin(np.abs(found + wrong - 1)))
    values["balanced accuracy"] = float(0.5 + (found[half] - wrong[half]) / 2)
    for rate in FALSE_POSITIVE_RATES:
        name = f"TPR at FPR {rate:g}"
        if outside.sum() * rate < 1:
            values[name] = Undefined(f"a rate of {rate:g} needs {1 / rate:.0f} others or more")
            continue
        allowed = np.flatnonzero(wrong <= rate)
        values[name] = float(found[allowed[-1]]) if len(allowed) else 0.0
    return values


def _losses(name: str, losses: ArrayLike) -> Floats:
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or np.isnan(values).any():
        raise ValueError(
            f"{name} has shape {values.shape}; give one loss for each record, none of them NaN."
        )
    return values
