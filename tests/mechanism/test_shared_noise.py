"""Noise in shares: together as much as one process adds, exact, and none of it known to one."""

import math

import pytest
import torch

from plumbline.mechanism.noise import gaussian, rounding_sensitivity
from plumbline.mechanism.random_source import SeededSource
from plumbline.mechanism.shared_noise import joined, noisy_share, shares_rounding_sensitivity

MANY = 40_000
STD = 0.7


def noise(share: int, numel: int = MANY) -> torch.Tensor:
    return gaussian(SeededSource(share).stream("noise"), numel)


@pytest.mark.parametrize("shares", [1, 2, 4, 7])
def test_the_sum_has_the_variance_of_one_process(shares: int) -> None:
    value = {"a": torch.zeros(MANY, dtype=torch.float64)}
    parts = [noisy_share(value, STD, noise(share), shares) for share in range(shares)]
    total = sum(parts[1:], parts[0])
    found = joined(total, value, STD, shares)["a"] / STD
    assert abs(float(found.mean())) < 5 / math.sqrt(MANY)
    assert abs(float(found.std()) - 1) < 5 / math.sqrt(2 * MANY)
    # And each share has its part: a curious process, which takes its own away, faces the others'.
    one = joined(parts[0], value, STD, shares)["a"] / STD
    assert abs(float(one.std()) * math.sqrt(shares) - 1) < 5 / math.sqrt(2 * MANY)
    left = (found - one).var() if shares > 1 else torch.tensor(0.0)
    assert float(left) == pytest.approx((shares - 1) / shares, abs=5 * math.sqrt(2 / MANY))


def test_parts_are_added_exactly_in_any_order() -> None:
    draw = torch.Generator().manual_seed(0)
    values = [{"a": 1e3 * torch.randn(100, generator=draw)} for _ in range(4)]
    parts = [noisy_share(v, STD, noise(n, 100), 4) for n, v in enumerate(values)]
    forwards = joined(parts[0] + parts[1] + parts[2] + parts[3], values[0], STD, 4)["a"]
    backwards = joined(parts[3] + (parts[2] + (parts[1] + parts[0])), values[0], STD, 4)["a"]
    assert torch.equal(forwards, backwards)
    exact = sum(v["a"].double() for v in values)
    drawn = sum(noise(n, 100) for n in range(4)) * STD / 2
    assert torch.allclose(forwards.double(), exact + drawn, rtol=1e-6)


def test_a_value_is_on_the_grid_whatever_it_was() -> None:
    """What is given away is an odd or even number of half steps by the number of shares alone."""
    value = {"a": torch.rand(1000)}
    share = noisy_share(value, STD, noise(1, 1000), 2)
    assert share.dtype == torch.int64
    assert bool((share % 2 == 1).all())


def test_names_shapes_and_types_stay() -> None:
    value = {"a": torch.ones(3, 2), "b": torch.ones(4, dtype=torch.float64)}
    found = joined(noisy_share(value, STD, noise(1, 10), 1), value, STD, 1)
    assert [(k, v.shape, v.dtype) for k, v in found.items()] == [
        (k, v.shape, v.dtype) for k, v in value.items()
    ]


def test_rounding_counts_for_every_share() -> None:
    assert shares_rounding_sensitivity(STD, 100, 1) == rounding_sensitivity(STD, 100)
    assert shares_rounding_sensitivity(STD, 100, 4) == pytest.approx(
        2 * rounding_sensitivity(STD, 100)
    )


def test_what_integers_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"times the noise's standard deviation.*larger noise"):
        noisy_share({"a": torch.full((1,), 1e9)}, 1e-3, noise(1, 1), 2)


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        noisy_share({"a": torch.tensor([math.nan])}, STD, noise(1, 1), 2)
