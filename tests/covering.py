"""Large products of parameters: ``make test`` runs as many cases as any two values need to meet.

A test marked ``covering`` has many parameters, and every case of their product is a test. Those
without which some two values would never be tried together stay; the others are marked slow.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import pytest

Pair = frozenset[tuple[str, int]]


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Marks those cases of the covering tests slow that no pair of values needs."""
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("covering"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        kept = covering(
            [{name: id(value) for name, value in case.callspec.params.items()} for case in cases]
        )
        for place, case in enumerate(cases):
            if place not in kept:
                case.add_marker(pytest.mark.slow)


def covering(cases: Sequence[Mapping[str, int]]) -> set[int]:
    """The places of cases in which every pair of values occurs that occurs in any of them.

    Args:
        cases: What tells each parameter's value from its others, by the parameter's name.
    """
    pairs = [_pairs(case) for case in cases]
    missing = set().union(*pairs)
    kept: set[int] = set()
    while missing:
        best = max(range(len(cases)), key=lambda place: len(pairs[place] & missing))  # the first
        kept.add(best)
        missing -= pairs[best]
    return kept


def _pairs(case: Mapping[str, int]) -> set[Pair]:
    return {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}
