"""Sums of rank-one gradients in float32 within buckets: one record changes its own bucket alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plumbline.gradients import PerSampleGradients
from plumbline.gradients.outer import Outer
from plumbline.gradients.summation import MOST_TOGETHER, ROUNDING, error
from tests.gradients.test_summation import rounding_records

OWN = 1e-6  # a record's own rounding, which its norm carries


@pytest.fixture(autouse=True)
def _buckets_for_small_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.gradients.outer._WORTH_BUCKETS", 0)


def summed(
    left: Tensor, right: Tensor, numbers: Tensor, width: int, weights: Tensor | None = None
) -> Tensor:
    """``sum_i weights_i left_i right_i^T``, in buckets of ``width`` numbers."""
    term = Outer(left[:, None], right[:, None])
    gradients = PerSampleGradients({"w": term}, len(left), torch.zeros(len(left)))
    weights = torch.ones(len(left)) if weights is None else weights
    return gradients.to_release(numbers // width).total(weights)["w"]


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 24), (7, 30), (64, 100)])
@pytest.mark.parametrize("records", [0, 1, 33, 600])
def test_they_are_sums_of_outer_products(rows: int, columns: int, records: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    left = torch.randn(records, rows, generator=generator)
    right = torch.randn(records, columns, generator=generator)
    numbers = torch.arange(0, 3 * records, 3)
    weights = torch.rand(records, generator=generator)
    found = summed(left, right, numbers, 90, weights)
    exact = (left.double() * weights.double()[:, None]).T @ right.double()
    longest = float(left.norm(dim=1).max() * right.norm(dim=1).max()) if records else 0.0
    # The proven error of each of the buckets, of 30 records each.
    assert float((found - exact).norm()) <= (records / 30 + 1) * error(31, 2.0**-24) * longest


def test_a_record_changes_no_bit_of_another_bucket() -> None:
    """Each bucket has a column of its own, so that its sum is seen."""
    records, width = 640, 32
    numbers = torch.arange(records)
    left = torch.randn(records, 8, generator=torch.Generator().manual_seed(0))
    right = torch.nn.functional.one_hot(numbers // width).float()
    everyone = summed(left, right, numbers, width)
    for gone in (0, 31, 200, 639):
        kept = numbers != gone
        others = summed(left[kept], right[kept], numbers[kept], width)
        changed = (everyone != others).any(0).nonzero()[:, 0].tolist()
        assert changed == [gone // width]


@pytest.mark.parametrize("count", [1_025, 16_385])
def test_one_record_moves_the_sum_by_its_norm(count: int) -> None:
    values, numbers = rounding_records(count), torch.arange(count)
    left, right = values[:, None].expand(-1, 4), torch.ones(count, 8) / 32**0.5
    everyone = summed(left, right, numbers, 32)
    others = summed(left[1:], right[1:], numbers[1:], 32)
    assert float((everyone - others).norm()) <= (1 + ROUNDING) * (1 + OWN)


def test_a_fuller_bucket_is_summed_in_float64() -> None:
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(400, 16, generator=generator)
    right = torch.randn(400, 24, generator=generator)
    numbers = torch.cat([torch.zeros(MOST_TOGETHER + 1), torch.ones(400 - MOST_TOGETHER - 1)])
    exact = left.double().T @ right.double()
    found = summed(left, right, numbers.long(), 1)
    torch.testing.assert_close(found, exact, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("size", [2.0**-149, 1e-40, 1e-30, 1e-10, 1.0, 1e10, 1e18])
@pytest.mark.parametrize("weight", [0.6, 1e-12, 1e12])
def test_neither_factor_overflows_or_vanishes(size: float, weight: float) -> None:
    """Of records whose gradients have norm one once they are weighted."""
    left = torch.full((5, 6), size)
    right = torch.full((5, 10), min(3e38, 1.0 / (size * weight * 60**0.5)))
    exact = weight * float(left[0, 0].double() * right[0, 0].double())
    found = summed(left, right, torch.arange(5), 32, torch.full((5,), weight, dtype=torch.float64))
    torch.testing.assert_close(found, torch.full_like(found, 5 * exact), rtol=1e-6, atol=1e-30)


def test_records_without_weight_take_no_part() -> None:
    generator = torch.Generator().manual_seed(2)
    left = torch.randn(100, 8, generator=generator)
    right = torch.randn(100, 8, generator=generator)
    left[40] = float("nan")
    weights = torch.ones(100)
    weights[40] = 0
    numbers = torch.arange(100)
    kept = numbers != 40
    assert torch.equal(
        summed(left, right, numbers, 32, weights),
        summed(left[kept], right[kept], numbers[kept], 32),
    )


def test_chosen_records_may_be_in_any_order() -> None:
    generator = torch.Generator().manual_seed(3)
    left = torch.randn(100, 8, generator=generator)
    right = torch.randn(100, 8, generator=generator)
    found = summed(left, right, torch.randperm(100, generator=generator), 10)
    torch.testing.assert_close(found, left.double().T @ right.double(), rtol=1e-5, atol=1e-4)
