"""tau^2 against dense gradients, and what averaging makes of it."""

import math

import pytest
import torch
from torch import Tensor

from plumbline.diagnostics import (
    over_iterates,
    sampling_noise,
    under_averaging,
)
from plumbline.diagnostics.sampling_noise import deviations
from plumbline.gradients import PerSampleGradients
from tests.diagnostics.problems import (
    BAD,
    assert_undefined,
    dense,
    generator,
    network,
    normal,
    rows,
)


def spread(gradients: Tensor) -> Tensor:
    """``|g_i - g|`` of each of them."""
    return (gradients - gradients.mean(0)).norm(dim=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_networks_noise_is_that_of_its_dense_gradients(dtype: torch.dtype) -> None:
    groups = torch.arange(24) % 3
    sample = network(dtype=dtype).sample(groups=groups)
    gradients = dense(sample)
    found = sampling_noise(sample)
    near = {"rel": 1e-9 if dtype == torch.float64 else 1e-5}
    assert found.tau_squared == pytest.approx(float(spread(gradients).square().mean()), **near)
    assert found.tau == pytest.approx(math.sqrt(found.tau_squared))
    assert found.mean_norm == pytest.approx(float(spread(gradients).mean()), **near)
    assert found.mean_norm <= found.tau
    for group in range(3):
        own = float(spread(gradients[groups == group]).square().mean())
        assert found.by_group[group] == pytest.approx(own, **near)
    torch.testing.assert_close(deviations(sample), spread(gradients), rtol=1e-5, atol=0)


def test_equal_gradients_have_none() -> None:
    found = sampling_noise(rows(normal(1, 3).repeat(5, 1), groups=torch.arange(5) % 2))
    # From norms alone: what is left of their difference is rounding.
    assert found.tau_squared == pytest.approx(0.0, abs=1e-13)
    assert found.by_group == pytest.approx({0: 0.0, 1: 0.0}, abs=1e-13)


@pytest.mark.parametrize(("records", "size"), [(60, 3), (600, 4), (62, 5)])
def test_averaging_divides_it(records: int, size: int) -> None:
    sample = rows(normal(records, 4) * normal(records, 1, seed=1).exp() + 1)
    whole = sampling_noise(sample).tau_squared
    found = torch.tensor(
        [under_averaging(sample, size, generator(seed)).tau_squared for seed in range(150)]
    )
    # Sampling without replacement; the few records that make no group are left out at random.
    groups = records // size
    expected = whole * records / (records - 1) * (groups - 1) / groups / size
    error = float(found.std()) / math.sqrt(150)
    assert abs(float(found.mean()) - expected) < 4 * error
    assert expected == pytest.approx(whole / size, rel=0.1)


def test_averaging_all_ways_of_four() -> None:
    gradients = torch.tensor([[0.0], [1.0], [5.0], [10.0]], dtype=torch.float64)
    # Two halves lie equally far from their mean: half of the distance of their averages.
    ways = {((0.5 - 7.5) / 2) ** 2, ((2.5 - 5.5) / 2) ** 2, ((5.0 - 3.0) / 2) ** 2}
    found = {
        round(under_averaging(rows(gradients), 2, generator(seed)).tau_squared, 9)
        for seed in range(40)
    }
    assert found == ways
    # On average tau^2 (m - 1) / (n - 1).
    assert sum(ways) / 3 == pytest.approx(sampling_noise(rows(gradients)).tau_squared / 3)


def captures(noise: list[Tensor]) -> list[PerSampleGradients]:
    """The records' gradients at several iterates, each with another mean."""
    means = normal(len(noise), noise[0].shape[1], seed=90) * 3
    return [rows(mean + own).gradients for mean, own in zip(means, noise, strict=True)]


def test_independent_noise_falls_with_the_window_and_equal_noise_does_not() -> None:
    noise = [normal(3000, 5, seed=seed) for seed in range(8)]
    sample = rows(noise[0])
    one = sampling_noise(sample)
    independent = over_iterates(sample, captures(noise))
    assert independent.tau_squared == pytest.approx(one.tau_squared / 8, rel=0.05)
    assert independent.mean_norm == pytest.approx(one.mean_norm / math.sqrt(8), rel=0.05)
    same = over_iterates(sample, captures(noise[:1] * 8))
    assert same.tau_squared == pytest.approx(one.tau_squared, rel=1e-6)


def test_the_average_over_iterates() -> None:
    noise = [normal(20, 5, seed=seed) * (1 + seed) for seed in range(4)]
    parts = captures(noise)
    found = over_iterates(rows(noise[0], groups=torch.arange(20) % 2), parts)
    total = torch.zeros(20, 5, dtype=torch.float64)
    for part in parts:
        own = dense(rows(part.materialise()["weight"]))
        total += (own - own.mean(0)) / 4
    lengths = total.norm(dim=1)
    assert found.mean_norm == pytest.approx(float(lengths.mean()))  # Fig. 5a's
    assert found.tau_squared == pytest.approx(float(lengths.square().mean()))
    assert set(found.by_group) == {0, 1}


def test_what_cannot_be_told() -> None:
    spoilt = sampling_noise(BAD["a group is not finite"]())
    assert_undefined(spoilt.by_group[1], "no record has a finite gradient")
    assert spoilt.by_group[0] > 0
    assert sampling_noise(BAD["one record"]()).tau_squared == pytest.approx(0.0, abs=1e-12)
    few = under_averaging(rows(normal(5, 2)), 3, generator())
    assert_undefined(few.tau, "5 records make fewer than two groups of 3")
    with pytest.raises(ValueError, match="size is 0"):
        under_averaging(rows(normal(5, 2)), 0, generator())
    assert_undefined(over_iterates(rows(normal(5, 2)), []).mean_norm, "no iterates")
    assert_undefined(sampling_noise(BAD["no records"]()).tau, "no records")
