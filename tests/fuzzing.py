"""Damaged input for readers: valid files with bytes or values changed, and how many are tried.

A reader given such a file has two ways out: what a strict reading gives, or an error of the
library's own that names the file. The same properties run on about a hundred inputs by default and
on ten thousand in the slow suite.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW, MANY = 100, 10_000
amounts = pytest.mark.parametrize("amount", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
"""A test with this mark is given how many inputs to try."""

TOKENS = (
    b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 5000,
    b"null", b"true", b'"', b"'", b"{", b"}", b"[", b"]", b"\n", b"\r", b",", b"=", b"..", b"%s",
    b"[" * 5000, b'{"a":' * 5000, "\u202e\U0001f600".encode(), b"\xef\xbb\xbf", b"0x10", b"1_000",
)  # fmt: skip
"""What readers trip over."""

VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 10**18, 10**40, 0.5, -0.0, 1e308, float("nan"), float("inf"), True, False, "",
    "a", "0.5", "nan", "\x00", "\ud7ff\u202e", "x" * 300, "../../etc/passwd", "__class__", [],
    [[]], [1, 2], ["a"], {}, {"a": 1}, {"": {}},
)  # fmt: skip
"""What a field is replaced by; without null, which TOML has not."""


@st.composite
def damaged(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """One of the valid files with one to three damages, or now and then plain noise."""
    data = draw(st.sampled_from(valid))
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.sampled_from((1, 1, 2, 4, 8, 32, 256)))
        before, span, after = data[:start], data[start : start + length], data[start + length :]
        match draw(st.integers(0, 6)):
            case 0:  # a flipped bit
                flipped = bytes([span[0] ^ 1 << draw(st.integers(0, 7))]) if span else b""
                data = before + flipped + span[1:] + after
            case 1:  # cut off
                data = before
            case 2:  # lost
                data = before + after
            case 3:  # twice
                data = before + span + span + after
            case 4:  # overwritten
                data = before + draw(st.binary(min_size=length, max_size=length)) + after
            case 5:  # inserted
                data = before + draw(st.sampled_from(TOKENS)) + span + after
            case 6:  # moved
                data = before + after[: len(after) // 2] + span + after[len(after) // 2 :]
    return data


@st.composite
def altered(draw: st.DrawFn, value: Any, values: Sequence[Any] = VALUES) -> Any:
    """A nesting of dicts and lists with one to three of its fields replaced, lost or added."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            return value
        parent, key = draw(st.sampled_from(places))
        new = copy.deepcopy(draw(st.sampled_from(values)))
        match draw(st.integers(0, 5)):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[draw(st.sampled_from(("extra", "", "name ", "Name", "__init__")))] = new
            case 2 if isinstance(parent, dict):
                parent[draw(st.text(max_size=5))] = parent.pop(key)
            case _:
                parent[key] = new
    return value


def fuzz(strategy: st.SearchStrategy[Any], check: Callable[[Any], None], amount: int) -> None:
    """Checks ``amount`` inputs, the same ones every time."""
    count = 0

    @settings(
        max_examples=amount,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(value: Any) -> None:
        nonlocal count
        count += 1
        check(value)

    one()
    assert count >= amount


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a nesting."""
    if isinstance(value, Mapping):
        own = [(value, key) for key in value]
    elif isinstance(value, list):
        own = [(value, place) for place in range(len(value))]
    else:
        return []
    return [*own, *(found for parent, key in own for found in _places(parent[key]))]
