"""One-sided Wilcoxon signed-rank tests with Holm's correction."""

import itertools
import json
import math

import numpy as np
import pytest
import scipy.stats

from plumbline.fairness import Undefined, compare_to, holm, to_json


def by_enumeration(gains: list[float]) -> float:
    """The share of all sign flips whose rank sum of gains is at least that observed."""
    nonzero = [gain for gain in gains if gain]
    ranks = scipy.stats.rankdata(np.abs(nonzero))
    observed = ranks[np.array(nonzero) > 0].sum()
    flips = itertools.product([False, True], repeat=len(nonzero))
    sums = [ranks[np.array(flip)].sum() for flip in flips]
    return sum(one >= observed - 1e-9 for one in sums) / len(sums)


def test_five_seeds_that_all_gain() -> None:
    # As paper 004 compares methods: no p-value of five seeds is smaller than 1/32.
    found = compare_to([0.70, 0.71, 0.69, 0.70, 0.72], {"global": [0.80, 0.82, 0.82, 0.84, 0.87]})
    test = found.tests["global"]
    assert test.p_value == test.adjusted == test.smallest == 1 / 32
    assert test.mean_difference == pytest.approx(0.126, rel=1e-12)
    assert (found.seeds, test.zeros) == (5, 0)
    assert found.note == (
        "With 5 paired seeds no p-value is below 1/32, and none is below 0.0312 after Holm's "
        "correction for 1 comparisons."
    )


def test_five_seeds_cannot_show_that_one_of_two_is_better() -> None:
    better = [1.1, 1.2, 1.3, 1.4, 1.5]
    found = compare_to([1.0] * 5, {"a": better, "b": [1.0, 0.9, 1.1, 1.0, 0.8]})
    assert found.tests["a"].adjusted == 2 / 32
    assert "at least 6 seeds" in found.note
    six = compare_to([1.0] * 6, {"a": [*better, 1.6], "b": [0.9] * 6})
    assert six.tests["a"].adjusted == 2 / 64
    assert "seeds." not in six.note


@pytest.mark.parametrize("seeds", [1, 4, 7, 10])
def test_against_an_enumeration_and_scipy(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    base, own = generator.normal(size=seeds), generator.normal(0.5, size=seeds)
    for better, sign in (("higher", 1), ("lower", -1)):
        found = compare_to(base.tolist(), {"own": own.tolist()}, better)  # type: ignore[arg-type]
        gains = (sign * (own - base)).tolist()
        assert found.tests["own"].p_value == pytest.approx(by_enumeration(gains), rel=1e-12)
        expected = scipy.stats.wilcoxon(gains, alternative="greater").pvalue
        assert found.tests["own"].p_value == pytest.approx(expected, rel=1e-12)


def test_lower_is_better_for_losses() -> None:
    found = compare_to([0.8] * 3, {"a": [0.5, 0.6, 0.4]}, better="lower")
    assert found.tests["a"].p_value == 1 / 8
    assert found.tests["a"].mean_difference < 0
    assert compare_to([0.8] * 3, {"a": [0.5, 0.6, 0.4]}).tests["a"].p_value == 1.0


def test_zeros_are_discarded_and_ties_share_their_rank() -> None:
    gains = [0.0, 0.25, 0.25, -0.25, 0.5, 1.0]
    found = compare_to([1.0] * 6, {"a": [1 + gain for gain in gains]}).tests["a"]
    assert found.zeros == 1
    assert found.smallest == 1 / 32
    assert found.p_value == pytest.approx(by_enumeration(gains), rel=1e-12)


def test_rounding_makes_no_difference_and_no_order() -> None:
    # 0.8 - 0.7 and 0.9 - 0.8 differ in the last digit, as do 0.3 and 0.1 + 0.2.
    base, own = [0.7, 0.8, 0.9, 0.3], [0.8, 0.9, 0.8, 0.1 + 0.2]
    found = compare_to(base, {"a": own}).tests["a"]
    assert found.zeros == 1
    assert found.p_value == pytest.approx(by_enumeration([0.1, 0.1, -0.1, 0]), rel=1e-12)


def test_no_difference_at_all() -> None:
    for values in ([0.5] * 5, [0.0] * 5):
        found = compare_to(values, {"a": values}).tests["a"]
        assert (found.p_value, found.adjusted, found.smallest, found.zeros) == (1.0, 1.0, 1.0, 5)


def test_many_seeds() -> None:
    generator = np.random.default_rng(0)
    for seeds in (30, 60):
        base = generator.normal(size=seeds)
        own = base + generator.normal(0.2, size=seeds)
        own[3] = base[3]  # a zero, which takes scipy to the normal approximation
        expected = scipy.stats.wilcoxon(own - base, alternative="greater").pvalue
        found = compare_to(base.tolist(), {"a": own.tolist()}).tests["a"].p_value
        assert found == pytest.approx(expected, rel=1e-9)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04; then never decreasing.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06], rel=1e-12)
    assert holm([0.5, 0.9, 0.6]) == [1.0, 1.0, 1.0]
    assert holm([0.3]) == [0.3]
    assert holm([]) == []


def test_holm_rejects_what_the_step_down_procedure_rejects() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        p_values = (generator.random(6) ** 3).tolist()
        rejected = set()
        for rank, place in enumerate(np.argsort(p_values)):
            if p_values[place] > 0.05 / (6 - rank):
                break
            rejected.add(int(place))
        adjusted = holm(p_values)
        assert {place for place in range(6) if adjusted[place] <= 0.05} == rejected


def test_several_methods_are_corrected_together() -> None:
    base = [0.1 * seed for seed in range(8)]
    others = {
        f"m{k}": [value + 0.01 * (seed - k) for seed, value in enumerate(base)] for k in range(3)
    }
    found = compare_to(base, others)
    p_values = [test.p_value for test in found.tests.values()]
    assert [test.adjusted for test in found.tests.values()] == holm(p_values)
    assert list(found.tests) == ["m0", "m1", "m2"]
    assert json.loads(json.dumps(to_json(found), allow_nan=False))["better"] == "higher"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(([1.0, 2.0], {"a": [1.0]}), "a has 1 values and the baseline 2", id="pairs"),
        pytest.param(([], {"a": []}), "has 0 values", id="no-seeds"),
        pytest.param(([1.0], {}), "others is empty", id="no-methods"),
        pytest.param(
            ([1.0], {"a": [math.nan]}), "a has a value that is nan; every seed needs", id="nan"
        ),
        pytest.param(([math.inf], {"a": [1.0]}), "baseline has a value that is inf", id="infinite"),
        pytest.param(([1.0], {"a": [Undefined("why")]}), "is undefined: why;", id="undefined"),
        pytest.param(([1.0], {"a": [1.0]}, "more"), "better is 'more'", id="better"),
    ],
)
def test_what_cannot_be_tested_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_to(*arguments)  # type: ignore[arg-type]
