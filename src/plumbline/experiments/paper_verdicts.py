"""Verdicts: a paper's values, rows and claims, judged by our measurements.

A value or claim is judged at the paper's settings, and claims also where every method was tuned
alike: what holds only while the methods are tuned unequally is "explained by tuning".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from plumbline.experiments.papers import MINUS, Inequality, PaperClaim, Published, PublishedFile
from plumbline.experiments.studies import Measured, Measurements


class PaperVerdict(StrEnum):
    """What came of a value or a claim."""

    REPRODUCED = "reproduced"
    DIRECTION = "reproduced in direction only"
    NOT = "not reproduced"
    TUNING = "explained by tuning"
    MISSING = "not measured"


def value_verdict(published: float, ours: Measured | None, tolerance: float) -> PaperVerdict:
    """Whether our mean is within the tolerance."""
    if ours is None or math.isnan(ours.mean):
        return PaperVerdict.MISSING
    near = abs(ours.mean - published) <= tolerance + 1e-9
    return PaperVerdict.REPRODUCED if near else PaperVerdict.NOT


def row_verdict(row: Published, published: PublishedFile, measured: Measurements) -> PaperVerdict:
    """All values near: reproduced. All on the published side of the reference row: direction."""
    verdicts = {
        value_verdict(
            value, measured.paper.get(f"{row.row} / {metric}"), published.tolerance_of(metric)
        )
        for metric, value in row.values.items()
    }
    if verdicts == {PaperVerdict.REPRODUCED}:
        return PaperVerdict.REPRODUCED
    if PaperVerdict.MISSING in verdicts:
        return PaperVerdict.MISSING
    reference = next((one for one in published.rows if one.row == published.reference), None)
    if reference is None or reference.row == row.row:
        return PaperVerdict.NOT
    for metric, value in row.values.items():
        other = measured.paper.get(f"{reference.row} / {metric}")
        ours = measured.paper[f"{row.row} / {metric}"]
        if other is None or metric not in reference.values:
            return PaperVerdict.NOT
        theirs, difference = value - reference.values[metric], ours.mean - other.mean
        if abs(theirs) > published.tolerance_of(metric) and theirs * difference <= 0:
            return PaperVerdict.NOT
    return PaperVerdict.DIRECTION


def claim_verdict(claim: PaperClaim, measured: Measurements) -> PaperVerdict:
    """As far as it holds at the paper's settings, unless it does not where all are tuned alike."""
    for verdict, whole in ((PaperVerdict.REPRODUCED, True), (PaperVerdict.DIRECTION, False)):
        at_paper = _holds(claim, measured.paper, whole)
        if at_paper is None:
            return PaperVerdict.MISSING
        if at_paper:
            return PaperVerdict.TUNING if _holds(claim, measured.tuned, whole) is False else verdict
    return PaperVerdict.NOT


def _holds(claim: PaperClaim, values: Mapping[str, Measured], whole: bool) -> bool | None:
    """Whether every inequality holds, by as much as claimed or at all; None if a value is missing.

    What is claimed to be no more than so much below ("comparable") has no other direction.
    """
    if any(math.isnan(_mean(values, key)) for key in claim.keys):
        return None
    above = [(*_sides(one, values), one[2]) for one in claim.above]
    times = [(*_sides(one, values), one[2]) for one in claim.times]
    return all(
        [this - that >= by - 1e-9 if whole or by <= 0 else this > that for this, that, by in above]
        + [
            this >= factor * that if whole or factor <= 1 else this > that
            for this, that, factor in times
        ]
    )


def _sides(one: Inequality, values: Mapping[str, Measured]) -> tuple[float, float]:
    this, that = (_mean(values, key) if isinstance(key, str) else key for key in one[:2])
    return this, that


def _mean(values: Mapping[str, Measured], key: str) -> float:
    first, *rest = (values[one].mean if one in values else math.nan for one in key.split(MINUS))
    return first - sum(rest)
