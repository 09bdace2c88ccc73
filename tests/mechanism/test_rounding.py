"""Bounds as text: an upper bound is never shown below what it is, a lower bound never above."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.mechanism.rounding import rounded_down, rounded_up, up_to_places

EPSILONS = st.floats(min_value=0, allow_infinity=False)  # and also those that nobody would claim


def read(shown: str) -> float:
    return float(shown.replace(",", ""))


@given(EPSILONS, st.integers(1, 8))
def test_never_on_the_wrong_side(epsilon: float, digits: int) -> None:
    up, down = (read(how(epsilon, digits)) for how in (rounded_up, rounded_down))
    assert down <= epsilon <= up
    assert up - down <= 10 ** (1 - digits) * up + math.ulp(0.0)  # a unit of the last digit


@given(EPSILONS, st.integers(0, 8))
def test_with_so_many_places_neither(epsilon: float, places: int) -> None:
    shown = up_to_places(epsilon, places)
    assert read(shown) >= epsilon
    assert len(shown.partition(".")[2]) == places


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0.0, "0", "0"),
        (0.001234, "0.00124", "0.00123"),
        (0.03491, "0.0350", "0.0349"),
        (1.981, "1.99", "1.98"),
        (3.1, "3.10", "3.10"),  # the float is just above it
        (3.0000000049, "3.01", "3.00"),
        (3.0049, "3.01", "3.00"),
        (9.999, "10.00", "9.99"),
        (12.01, "12.1", "12.0"),
        (1234.5, "1,235", "1,234"),
        (math.inf, "inf", "inf"),
    ],
)
def test_three_digits_or_whole(value: float, up: str, down: str) -> None:
    assert (rounded_up(value), rounded_down(value)) == (up, down)


def test_more_digits_and_a_word_for_infinity() -> None:
    values = (0.0, 1.0, 1.23451, 12.3401, math.inf)
    assert [rounded_up(value, 4, "infinite") for value in values] == [
        "0", "1.000", "1.235", "12.35", "infinite",
    ]  # fmt: skip
