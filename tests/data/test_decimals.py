"""Decimal numbers in a compiled loop: the bits of ``float``, or left to it."""

import math
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.data import numbers
from plumbline.data.decimals import decimals
from plumbline.data.numbers import numbers_of

WORDS = ["", "-", ".", "+", "1e5", "1_000", "inf", "nan", "NA", "1.2.3", "--1", "٣", " 1", "1\n2"]


def bits(number: float) -> bytes:
    return struct.pack("<d", number)


@given(st.lists(st.from_regex(r"[+-]?\d{0,20}(\.\d{0,20})?", fullmatch=True), max_size=20))
def test_numbers_have_the_bits_of_float(cells: list[str]) -> None:
    numbers, others = decimals(cells)
    for place, cell in enumerate(cells):
        if place not in others and cell:
            assert bits(float(cell)) == bits(numbers[place])
    plain = [c for c in cells if sum(map(str.isdigit, c)) in range(1, 16) and c.isascii()]
    assert len(decimals(plain)[1]) == 0


def test_many_random_numbers_have_the_bits_of_float() -> None:
    draw = random.Random(0)
    cells = [
        f"{draw.choice(['', '-', '+'])}{draw.randrange(10 ** draw.randrange(1, 8))}."
        f"{draw.randrange(10 ** draw.randrange(1, 8))}"
        for _ in range(100_000)
    ]
    numbers, others = decimals(cells)
    assert len(others) == 0
    assert numbers.tolist() == [float(cell) for cell in cells]
    assert bits(decimals(["-0"])[0][0]) == bits(-0.0)


def test_what_is_no_plain_number_is_left_to_float() -> None:
    numbers, others = decimals(WORDS[:-1])
    assert others.tolist() == list(range(1, len(WORDS) - 1))
    assert math.isnan(numbers[0])
    assert decimals(WORDS)[1].tolist() == list(range(len(WORDS)))  # a cell of two lines
    assert decimals([])[1].tolist() == []


@pytest.mark.parametrize("read", [0, 10**9])
def test_the_numbers_of_cells_are_the_same_either_way(
    monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    monkeypatch.setattr(numbers, "_read", read)
    cells = [*WORDS, "12.5", "-3", "1e400", "123456789012345678"]
    expected = [np.nan] * 4 + [1e5, 1000.0] + [np.nan] * 5 + [3.0, 1.0, np.nan]
    expected += [12.5, -3.0, np.nan, 123456789012345678.0]
    np.testing.assert_array_equal(numbers_of(cells), expected)
