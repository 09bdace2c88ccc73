"""What strategies ask of their own, and how they adapt to noisy answers: methods.md, part B."""

from __future__ import annotations

import math
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plumbline.clipping import Averaged, GlobalAdapt, PerGroup, QuantileAdaptive
from plumbline.mechanism.release import Query

NORMS = torch.tensor([0.1, 0.4, 0.6, 3.0, 30.0])
GROUPS = torch.tensor([0, 1, 1, 0, 1])


def records(**changes: Any) -> Any:
    base = {"norms": NORMS, "groups": GROUPS, "noise_multiplier": 1.5, "expected_size": 8}
    return SimpleNamespace(**{**base, **changes})


def answered(program: Generator[Query, Any, Any], answer: Any) -> Query:
    """The one question of a program, after the answer was given."""
    query = next(program)
    with pytest.raises(StopIteration):
        program.send({"value": torch.as_tensor(answer, dtype=torch.float64)})
    return query


def test_global_adapt_follows_the_printed_update() -> None:
    clipping = GlobalAdapt(0.5, initial=2.0, rate=0.1, tolerance=0.25)
    query = answered(clipping.after(records()), 3.7)
    assert (float(query.value), query.sensitivity, query.sigma) == (3.0, 1.0, 10.0)  # n > 0.5
    assert clipping.bound == pytest.approx(2.0 * math.exp(-0.1 + 3.7 / 8))
    assert clipping.queries_after(1.5) == (query.asked,)


def test_global_adapt_never_goes_below_its_clip() -> None:
    clipping = GlobalAdapt(0.5, initial=0.6)
    answered(clipping.after(records()), -1e6)
    assert clipping.bound == 0.5
    answered(clipping.after(records()), 1e9)  # nor beyond what float32 can hold
    assert math.isfinite(clipping.bound)


def test_the_quantile_follows_andrew_et_al() -> None:
    clipping = QuantileAdaptive(0.5, quantile=0.7, rate=0.3, count_noise=4.0)
    query = answered(clipping.after(records()), 2.4)
    assert (float(query.value), query.sensitivity, query.sigma) == (2.0, 1.0, 4.0)
    assert clipping.bound == pytest.approx(0.5 * math.exp(-0.3 * (2.4 / 8 - 0.7)))
    assert clipping.sensitivity == clipping.bound


def test_the_bound_of_a_quantile_stays_a_sensitivity() -> None:
    clipping = QuantileAdaptive(1e-11)
    for answer in (1e9, -1e9):
        answered(clipping.after(records()), answer)
        assert 0 < clipping.sensitivity < math.inf


def test_groups_are_counted_in_one_question() -> None:
    clipping = PerGroup(0.5)
    query = answered(clipping.before(records()), [2.9, 1.2, 3.0, 0.4])
    # Group 0: one above 0.5, one not; group 1: two above, one not.
    assert query.value.tolist() == [1, 1, 2, 1]  # type: ignore[union-attr]
    assert (query.sensitivity, query.sigma) == (1.0, 15.0)
    # Floored: 2 and 1, 3 and 0. Shares 2/3 and 1, mean 5/6.
    assert clipping.bounds == pytest.approx([0.5 * (1 + 0.8), 0.5 * (1 + 1.2)])
    assert clipping.sensitivity == pytest.approx(1.1)
    factors = clipping.factors(NORMS, GROUPS)
    bounds = torch.tensor([0.9, 1.1, 1.1, 0.9, 1.1])
    torch.testing.assert_close(factors, (bounds / NORMS).clamp(max=1))


@pytest.mark.parametrize(
    ("form", "answer", "ratios"),
    [
        ("released", [0.2, 5, 0.9, 5], [0, 0]),  # floored: none above, so C_k = C
        ("released", [-3, -1, 2, 2], [1 / 0.75, 0.5 / 0.75]),  # an empty group has share 1
        ("released", [0, 0, 0, 0], [1, 1]),
        ("paper", [1, 3, 2, 2], [0.25 / 0.375, 0.5 / 0.375]),
        ("paper", [8, 0, 0, 100], [2, 0]),  # at most 1 + K
        ("paper", [0, 0, 0, 5], [2, 0]),  # an empty group beside one without any above
    ],
)
def test_the_groups_bounds(form: Any, answer: list[float], ratios: list[float]) -> None:
    clipping = PerGroup(0.5, form=form)
    answered(clipping.before(records()), answer)
    assert clipping.bounds == pytest.approx([0.5 * (1 + ratio) for ratio in ratios])


def test_groups_are_declared_and_given() -> None:
    with pytest.raises(ValueError, match="value that is not one of the declared groups"):
        next(PerGroup(groups=(0, 2)).before(records()))
    with pytest.raises(ValueError, match="give sensitive_features"):
        next(PerGroup().before(records(groups=None)))


def test_without_noise_nothing_is_noised() -> None:
    quiet = records(noise_multiplier=0.0)
    assert next(GlobalAdapt().after(quiet)).sigma == 0
    assert next(PerGroup().before(quiet)).sigma == 0
    assert GlobalAdapt().queries_after(0.0)[0].noise_multiplier == 0


@pytest.mark.parametrize(
    ("size", "expected", "buckets"), [(4, 256, 64), (3, 8, 3), (10, 4, 1), (1, 5, 5)]
)
def test_averages_are_divided_by_the_expected_number_of_buckets(
    size: int, expected: int, buckets: int
) -> None:
    assert Averaged(1.0, size).buckets(expected) == buckets
    assert Averaged(1.0, size).normaliser(expected) == expected / size


@pytest.mark.parametrize("kind", [GlobalAdapt, QuantileAdaptive, PerGroup])
def test_what_adapts_goes_round(kind: Any) -> None:
    one, other = kind(), kind()
    if kind is PerGroup:
        answered(one.before(records()), [5, 1, 1, 5])
    else:
        answered(one.after(records()), 5)
    assert one.state_dict() != other.state_dict()
    other.load_state_dict(one.state_dict())
    assert other.state_dict() == one.state_dict()
    assert other.sensitivity == one.sensitivity
    with pytest.raises(ValueError, match="carries"):
        other.load_state_dict({})
