"""Intervals of differences against scipy's, and how many seeds would decide them."""

import math

import pytest
from scipy import stats

from plumbline.experiments.claim_intervals import MOST_SEEDS, ClaimPart, PartVerdict
from plumbline.experiments.studies import Measured

FIRST, SECOND = [5.0, 7.0, 6.5, 8.0], [4.5, 6.0, 6.25, 7.0]
VALUES = {"a / x": Measured.of(FIRST), "b / x": Measured.of(SECOND)}
PART = ClaimPart("a / x", "b / x", 1.0, 1.0)


def test_seeds_are_paired() -> None:
    found = PART.interval(VALUES)
    expected = stats.ttest_rel(FIRST, SECOND).confidence_interval()
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(0.6875)


def test_without_seeds_the_means_are_independent() -> None:
    """With the standard errors of both, and the fewer degrees of freedom: never shorter."""
    kept = {key: Measured(one.mean, one.standard_error, runs=4) for key, one in VALUES.items()}
    found = PART.interval(kept)
    error = math.hypot(*(one.standard_error for one in VALUES.values()))
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 3) * error)
    welch = stats.ttest_ind(FIRST, SECOND, equal_var=False).confidence_interval()
    assert found.low < welch.low < welch.high < found.high


def test_other_seeds_are_not_paired() -> None:
    other = {**VALUES, "b / x": Measured.of(SECOND, seeds=(7, 8, 9, 10))}
    assert PART.interval(other).low < PART.interval(VALUES).low


def test_bounds_leave_an_interval() -> None:
    bounded = {
        "a / x": Measured(3.0, bounds=(2.5, 4.0)),
        "b / x": Measured(1.0, bounds=(0.5, 1.25)),
    }
    found = PART.interval(bounded)
    assert (found.low, found.high) == (1.25, 3.5)
    assert PART.shown(bounded) is PartVerdict.FULL
    assert ClaimPart(2.0, "b / x", 0.0, 1.0).interval(bounded).low == 0.75


def test_one_seed_shows_nothing() -> None:
    alone = {"a / x": Measured.of([9.0]), "b / x": Measured.of([1.0])}
    assert math.isnan(PART.interval(alone).low)
    assert PART.shown(alone) is PartVerdict.UNDECIDED
    assert PART.seeds_needed(alone) is None


def test_the_seeds_it_would_take_do_decide_it() -> None:
    """As many seeds, with the same mean and deviation, would show something."""
    part = ClaimPart("a / x", "b / x", 2.0, 1.0)
    wide = {"a / x": Measured.of([0.0, 3.0, 2.0]), "b / x": Measured.of([1.0, 1.0, 1.0])}
    assert part.shown(wide) is PartVerdict.UNDECIDED
    seeds = part.seeds_needed(wide)
    assert seeds is not None
    deviation = part.interval(wide).deviation
    for count, decided in ((seeds, True), (seeds - 1, False)):
        half = stats.t.ppf(0.975, count - 1) * deviation / math.sqrt(count)
        assert bool(half < 2.0 - part.interval(wide).mean) is decided
    at_margin = ClaimPart("a / x", "b / x", 2 / 3 - 1e-9, 1.0)
    comparable = ClaimPart("a / x", "b / x", -1e9, 1.0)
    assert at_margin.seeds_needed(wide) == part_seeds(2 / 3, deviation)  # shows its direction
    assert comparable.seeds_needed(wide) == 3
    assert (
        ClaimPart("a / x", "b / x", 0.0, 1.0).seeds_needed(
            {"a / x": Measured.of([1.0, -1.0, 1e-9]), "b / x": Measured.of([0.0, 0.0, 0.0])}
        )
        == MOST_SEEDS
    )  # no difference: no number of seeds shows one


def part_seeds(margin: float, deviation: float) -> int:
    """The fewest seeds whose interval is shorter than a margin on each side."""
    return next(
        count
        for count in range(3, MOST_SEEDS)
        if stats.t.ppf(0.975, count - 1) * deviation / math.sqrt(count) < margin
    )


def test_what_a_part_is_about() -> None:
    assert ClaimPart("a / excessive risk gap", 0.0, 0.0, 1.0).about == "loss"
    assert ClaimPart("a / privacy cost / male", "b / x", 0.0, 1.0).about == "accuracy"
