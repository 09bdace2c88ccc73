"""Verdicts: a paper's values, rows and claims, judged by our measurements.

Values are judged at the paper's size only; claims also at a smaller one, if the recipe says why it
can answer. A claim is reproduced or contradicted only if its intervals show it (`claim_intervals`).
Where every method was tuned alike, and the tuned interval excludes half of the published
difference, that difference is explained by tuning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from plumbline.experiments.claim_intervals import (
    MOST_SEEDS,
    ClaimPart,
    DifferenceInterval,
    PartVerdict,
)
from plumbline.experiments.papers import PaperClaim, Published, PublishedFile
from plumbline.experiments.studies import Measured, Measurements


class PaperVerdict(StrEnum):
    """What came of a value or a claim."""

    REPRODUCED = "reproduced"
    DIRECTION = "reproduced in direction only"
    NOT = "not reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    TUNING = "explained by tuning"
    UNDEFINED = "undefined"
    NOT_JUDGED = "not judged at this size"
    MISSING = "not measured"


@dataclass(frozen=True)
class PartOutcome:
    """What came of one inequality of a claim.

    Attributes:
        part: The inequality.
        shown: What our measurements show of it, at the paper's settings.
        interval: Of the difference.
        tuned: The interval where every method was tuned alike; NaN if it was not.
        explained: Whether tuning explains it.
        seeds: How many seeds would decide it, where it is undecided and this is known.
    """

    part: ClaimPart
    shown: PartVerdict
    interval: DifferenceInterval
    tuned: DifferenceInterval
    explained: bool
    seeds: int | None


@dataclass(frozen=True)
class ClaimOutcome:
    """What came of a claim.

    Attributes:
        verdict: In a word.
        remark: What must be said with it; may be empty.
        parts: What came of its inequalities.
    """

    verdict: PaperVerdict
    remark: str
    parts: tuple[PartOutcome, ...]

    @property
    def deciding(self) -> PartOutcome:
        """The part that the verdict hangs on: the one that shows least."""
        order = list(PartVerdict)
        return max(self.parts, key=lambda one: order.index(one.shown))


def value_verdict(published: float, ours: Measured | None, tolerance: float) -> PaperVerdict:
    """Whether our mean is within the tolerance, or surely not."""
    if ours is None or math.isnan(ours.mean):
        return PaperVerdict.MISSING
    away = abs(ours.mean - published) - tolerance
    if away <= 1e-9:
        return PaperVerdict.REPRODUCED
    chance = away < 2 * ours.standard_error  # never, with a single seed
    return PaperVerdict.UNDECIDED if chance else PaperVerdict.NOT


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
    if PaperVerdict.NOT not in verdicts:
        return PaperVerdict.UNDECIDED
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


def claim_outcome(claim: PaperClaim, measured: Measurements) -> ClaimOutcome:
    """The verdict on a claim: it holds if all of its parts do."""
    parts = tuple(_part(part, measured) for part in ClaimPart.of(claim))
    shown = [one.shown for one in parts]
    gone = shown.count(PartVerdict.GONE)
    explained = sum(one.explained for one in parts)
    for worst, verdict in (
        (PartVerdict.MISSING, PaperVerdict.MISSING),
        (PartVerdict.UNDEFINED, PaperVerdict.UNDEFINED),
    ):
        if worst in shown:
            return ClaimOutcome(verdict, "", parts)
    if gone:
        remark = "" if gone == len(parts) else f"in {gone} of {len(parts)} parts"
        return ClaimOutcome(PaperVerdict.CONTRADICTED, remark, parts)
    if PartVerdict.UNDECIDED in shown:
        return ClaimOutcome(PaperVerdict.UNDECIDED, _needed(parts), parts)
    if explained == len(parts):
        return ClaimOutcome(PaperVerdict.TUNING, "", parts)
    remark = f"tuning explains {explained} of {len(parts)} parts" if explained else ""
    full = PartVerdict.DIRECTION not in shown
    return ClaimOutcome(PaperVerdict.REPRODUCED if full else PaperVerdict.DIRECTION, remark, parts)


def _part(part: ClaimPart, measured: Measurements) -> PartOutcome:
    shown = part.shown(measured.paper)
    tuned = part.interval(measured.tuned)
    holds = shown in (PartVerdict.FULL, PartVerdict.DIRECTION)
    aimed = part.about == measured.aim
    return PartOutcome(
        part=part,
        shown=shown,
        interval=part.interval(measured.paper),
        tuned=tuned,
        explained=holds and aimed and tuned.high < part.by,
        seeds=part.seeds_needed(measured.paper) if shown is PartVerdict.UNDECIDED else None,
    )


def _needed(parts: tuple[PartOutcome, ...]) -> str:
    left = [one for one in parts if one.shown is PartVerdict.UNDECIDED]
    if any(math.isnan(one.interval.low) for one in left):
        return "one seed; it would take at least 3"
    known = [one.seeds for one in left if one.seeds is not None]
    if len(known) < len(left):
        return "a longer measurement would tell"
    most = max(known)
    return f"it would take {'over ' if most == MOST_SEEDS else 'about '}{most} seeds"
