"""Which cases of a large product every change must pass."""

import itertools

from tests.covering import covering

SIZES = {"layer": 5, "precision": 3, "bias": 2, "order": 2}
CASES = [
    dict(zip(SIZES, values, strict=True))
    for values in itertools.product(*(range(size) for size in SIZES.values()))
]


def test_any_two_values_meet_in_few_of_the_cases() -> None:
    kept = [CASES[place] for place in covering(CASES)]
    for one, other in itertools.combinations(SIZES, 2):
        met = {(case[one], case[other]) for case in kept}
        assert met == set(itertools.product(range(SIZES[one]), range(SIZES[other])))
    assert 15 <= len(kept) <= 20 < len(CASES)


def test_of_two_parameters_every_case_stays() -> None:
    cases = [{"a": a, "b": b} for a in range(3) for b in range(4)]
    assert covering(cases) == set(range(12))


def test_pairs_that_no_case_has_are_not_missed() -> None:
    assert covering([{"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 1, "c": 1}]) == {0, 1}
    assert covering([]) == set()
