"""The intervals of a race."""

import math

import numpy as np
import pytest

from benchmarks.timing import Spread


@pytest.mark.parametrize("rounds", [6, 7, 15, 31])
def test_a_medians_interval_has_it_in_95_of_a_hundred_races(rounds: int) -> None:
    """Whatever the distribution: here a skewed one, as times are; its median is log 2."""
    races = np.random.default_rng(0).exponential(size=(4000, rounds))
    spreads = [Spread.of_median(list(race)) for race in races]
    held = np.mean([one.low <= math.log(2) <= one.high for one in spreads])
    assert held > 0.95 - 2 * math.sqrt(0.05 * 0.95 / len(races))


def test_more_rounds_narrow_a_medians_interval() -> None:
    values = list(np.random.default_rng(0).normal(size=400))
    few, many = Spread.of_median(values[:20]), Spread.of_median(values)
    assert many.high - many.low < (few.high - few.low) / 2


def test_five_rounds_say_nothing_of_a_median() -> None:
    found = Spread.of_median([1.0, 1.1, 1.2, 1.3, 5.0])
    assert (found.median, found.low, found.high) == (1.2, -math.inf, math.inf)
