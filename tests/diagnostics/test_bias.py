"""Bias against dense gradients and the papers' examples; the error's parts against simulation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plumbline.clipping import (
    Averaged,
    Clipping,
    Flat,
    Global,
    Normalised,
    PerGroup,
    PerLayer,
    Unclipped,
)
from plumbline.diagnostics import bias, bias_by_batch_size, error_parts
from tests.diagnostics.problems import (
    assert_undefined,
    clipped,
    dense,
    flat,
    generator,
    network,
    normal,
    rows,
)

seeds = st.integers(0, 10_000)
clips = st.floats(0.01, 10)


def skewed(records: int = 60, seed: int = 0) -> Tensor:
    """Short gradients one way and a few long ones another: clipping turns their mean."""
    gradients = normal(records, 4, seed=seed) * 0.3 + torch.tensor([0.5, 0, 0, 0]).double()
    gradients[::5] += torch.tensor([0, 6.0, -2.0, 0]).double()
    return gradients


@given(seeds, clips)
def test_the_decomposition_is_theorem_1s_and_adds_up(seed: int, clip: float) -> None:
    gradients = skewed(20, seed)
    found = bias(rows(gradients, Flat(clip)))
    g = gradients.mean(0)
    # Eq. 19 to 24, with M_i = max(1, n_i / C): each record split along g, then clipped.
    eta = gradients @ g / g.square().sum()
    scale = (gradients.norm(dim=1) / clip).clamp(min=1)
    a = (eta / scale).mean()
    c = ((gradients - eta[:, None] * g) / scale[:, None]).mean(0)
    assert found.magnitude == pytest.approx(float(a), rel=1e-9)
    assert found.direction == pytest.approx(float(c.norm()), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(a * g + c, clipped(gradients, clip).mean(0))
    assert abs(float(c @ g)) < 1e-12
    parts = (1 - found.magnitude) ** 2 * found.gradient_norm**2 + found.direction**2
    assert found.norm**2 == pytest.approx(parts, rel=1e-9, abs=1e-20)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("clip", [0.1, 3.5, 5.0])
def test_a_networks_bias_is_that_of_its_dense_gradients(dtype: torch.dtype, clip: float) -> None:
    sample = network(dtype=dtype).sample(Flat(clip))
    gradients = dense(sample)
    g, gbar = gradients.mean(0), clipped(gradients, clip).mean(0)
    found = bias(sample)
    # The sums of a float32 model are rounded to that, and their difference with them.
    size = float(g.norm())
    near = {"abs": size * (1e-9 if dtype == torch.float64 else 1e-6)}
    assert found.gradient_norm == pytest.approx(size, **near)
    assert found.clipped_norm == pytest.approx(float(gbar.norm()), **near)
    assert found.norm == pytest.approx(float((gbar - g).norm()), **near)
    assert found.relative == pytest.approx(float((gbar - g).norm()) / size, abs=1e-5)
    assert found.relative_direction == pytest.approx(found.direction / size)
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(gbar, g, 0)), abs=1e-6)
    # Adds up whatever the precision of the gradients, also where clipping changes very little.
    parts = (1 - found.magnitude) ** 2 * found.gradient_norm**2 + found.direction**2
    assert found.norm**2 == pytest.approx(parts, rel=1e-6)


def test_gradients_within_the_bound_are_not_bent() -> None:
    found = bias(rows(normal(9, 3), Flat(100.0)))
    assert (found.norm, found.magnitude, found.direction) == (0.0, pytest.approx(1.0), 0.0)
    assert found.cosine == pytest.approx(1.0)


def test_equal_scaling_costs_length_but_no_direction() -> None:
    gradients = normal(9, 3)
    found = bias(rows(gradients, Global(1.0, 50.0)))
    assert found.magnitude == pytest.approx(1 / 50, rel=1e-6)
    assert found.cosine == pytest.approx(1.0)
    assert found.direction == pytest.approx(0.0, abs=1e-8)


def example(centres: list[float], x: float) -> Tensor:
    """The gradients of ``(x - a_i)^2 / 2``, ``[B, 1]`` (paper 001, section 1)."""
    return x - torch.tensor(centres, dtype=torch.float64)[:, None]


def test_example_1_moves_away_from_the_optimum() -> None:
    sample = rows(example([-3, -3, 9], 1.0))
    assert float(flat(sample.clipped_mean)) == pytest.approx(1 / 3)
    found = bias(sample)
    assert found.gradient_norm == 0.0
    assert found.norm == pytest.approx(1 / 3)
    assert_undefined(found.magnitude, "the mean gradient is zero")
    # And settles where the clipped gradient vanishes, at -2.5 (methods.md, G).
    settled = bias(rows(example([-3, -3, 9], -2.5)))
    assert settled.clipped_norm == pytest.approx(0.0, abs=1e-15)
    assert settled.norm == pytest.approx(3.5)


@pytest.mark.parametrize("x", [-2.0, -0.7, 0.5, 2.0])
def test_example_2_stands_still_everywhere_between(x: float) -> None:
    found = bias(rows(example([-3, 3], x)))
    assert found.clipped_norm == pytest.approx(0.0, abs=1e-15)
    assert found.norm == pytest.approx(abs(x))
    assert found.magnitude == pytest.approx(0.0, abs=1e-15)
    assert_undefined(found.cosine, "zero")


@pytest.mark.parametrize(
    "clipping", [Flat(1.0), Normalised(), PerGroup(0.8)], ids=["flat", "normalised", "per-group"]
)
@pytest.mark.parametrize("rate", [0.02, 0.4])
def test_the_parts_are_the_mean_squared_error_of_releases(clipping: Clipping, rate: float) -> None:
    gradients, groups = skewed(), torch.arange(60) % 2
    size, noise, draws = round(rate * 60) or 1, 0.4, 200_000
    rate = size / 60
    sample = rows(gradients, clipping, groups=groups, noise_multiplier=noise, expected_size=size)
    parts = error_parts(sample, rate)
    # Many releases: Poisson batches of clipped gradients, noise on the sum, divided by L.
    scaled = clipping.factors(gradients.norm(dim=1), groups)[:, None] * gradients
    rng = generator(11)
    drawn = (torch.rand(draws, 60, generator=rng) < rate).double()
    std = noise * clipping.sensitivity
    sums = drawn @ scaled + std * torch.randn(draws, 4, generator=rng, dtype=torch.float64)
    errors = (sums / size - gradients.mean(0)).square().sum(1)
    spread = float(errors.std()) / math.sqrt(draws)
    assert abs(float(errors.mean()) - parts.total) < 4 * spread
    # And part by part.
    bent = float((scaled.mean(0) - gradients.mean(0)).square().sum())
    assert parts.bias == pytest.approx(bent)
    assert parts.noise == pytest.approx(4 * (std / size) ** 2)
    batches = drawn @ scaled / size
    assert parts.sampling == pytest.approx(float(batches.var(0).sum()), rel=0.02)
    # Without a rate, sampling is that of a rate near zero.
    assert error_parts(sample).sampling * (1 - rate) == pytest.approx(parts.sampling)


def test_parts_that_cannot_be_told() -> None:
    gradients = skewed()
    layered = error_parts(rows(gradients, PerLayer(1.0), noise_multiplier=2.0, expected_size=10))
    assert layered.noise == pytest.approx(4 * (2.0 / 10) ** 2)
    assert_undefined(layered.sampling, "no single factor")
    averaged = rows(gradients, Averaged(1.5, 2), noise_multiplier=2.0, expected_size=10)
    # Sensitivity 2C on a sum that is divided by L / p.
    assert error_parts(averaged).noise == pytest.approx(4 * (2.0 * 3.0 / 5) ** 2)
    assert_undefined(error_parts(averaged).total, "averages")
    free = error_parts(rows(gradients, Unclipped(), noise_multiplier=2.0))
    assert free.bias == pytest.approx(0.0, abs=1e-25)
    assert_undefined(free.noise, "nothing bounds the gradients")
    assert_undefined(free.total, "nothing bounds the gradients")
    assert error_parts(rows(gradients, Unclipped())).noise == 0.0
    assert error_parts(rows(torch.zeros(3, 2))).total == 0.0


def test_larger_batches_have_less_bias() -> None:
    # The clipped and the true mean of a batch differ by its own noise as well (000, Figs. 5, 6).
    gradients = normal(512, 6) * (normal(512, 1, seed=1) / 2).exp() + 0.3
    sample = rows(gradients)
    found = bias_by_batch_size(sample, [4, 32, 512, 513, 0], generator(), batches=40)
    assert [one.batches for one in found] == [40, 40, 1, 0, 0]
    assert found[0].norm > found[1].norm > found[2].norm
    assert found[0].cosine < found[1].cosine < found[2].cosine
    whole = bias(sample)
    assert found[2].norm == pytest.approx(whole.norm)
    assert found[2].cosine == pytest.approx(whole.cosine)
    assert found[2].relative == pytest.approx(whole.relative)
    assert_undefined(found[3].norm, "the sample has 512 records, not 513")
    # The mean over batches is the mean over batches: here of the two batches of one record.
    pair = rows(torch.tensor([[3.0], [1.5]]).double())
    assert bias_by_batch_size(pair, [1], generator(), batches=200)[0].norm == pytest.approx(
        (2 + 0.5) / 2, abs=0.25
    )
