"""Resampling records."""

import numpy as np
import pytest

from plumbline.fairness import Interval, Undefined, resampling
from plumbline.fairness.resampling import (
    check_level,
    gap_interval,
    percentile_interval,
    resampled_sums,
)


def test_sums_are_those_of_resampled_records() -> None:
    columns = np.random.default_rng(0).normal(size=(7, 3))
    rows = np.array([1, 4, 5])
    whole, part = resampled_sums(
        np.random.default_rng(5), 11, 7, [(np.arange(7), columns), (rows, columns[rows])]
    )
    drawn = np.random.default_rng(5).integers(7, size=(11, 7))
    for number, records in enumerate(drawn):
        np.testing.assert_allclose(whole[number], columns[records].sum(0), rtol=1e-12)
        own = records[np.isin(records, rows)]
        np.testing.assert_allclose(part[number], columns[own].sum(0), rtol=1e-12)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [(np.arange(9), np.arange(18.0).reshape(9, 2))]
    (whole,) = resampled_sums(np.random.default_rng(1), 10, 9, parts)
    monkeypatch.setattr(resampling, "_CELLS", 30)
    (chunked,) = resampled_sums(np.random.default_rng(1), 10, 9, parts)
    np.testing.assert_array_equal(whole, chunked)


def test_percentiles() -> None:
    values = np.arange(101.0)
    assert percentile_interval(values, 0.9) == Interval(pytest.approx(5), pytest.approx(95), 101)
    values[::2] = np.nan
    found = percentile_interval(values, 0.5)
    assert isinstance(found, Interval)
    assert found.replicates == 50
    assert percentile_interval(np.array([np.nan]), 0.9) == Undefined("no resample has a value")
    assert percentile_interval(Undefined("why"), 0.9) == Undefined("why")


def test_the_gap_is_taken_in_every_resample() -> None:
    first, second = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, np.nan])
    found = gap_interval([first, second, Undefined("x")], 0.5)
    assert found == Interval(0.25, 0.75, 2)
    assert isinstance(gap_interval([first, Undefined("x")], 0.5), Undefined)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, -0.5, float("nan")])
def test_a_level_is_a_probability(level: float) -> None:
    with pytest.raises(ValueError, match="level is"):
        check_level(level)
