"""Symmetry against dense gradients, mirror images and couplings; paper 001's theorems hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from plumbline.clipping import Flat, Unclipped
from plumbline.diagnostics import (
    Undefined,
    projections,
    symmetry,
)
from tests.diagnostics.problems import (
    BAD,
    assert_undefined,
    clipped,
    dense,
    generator,
    network,
    normal,
    rows,
)

seeds = st.integers(0, 10_000)
EXAMPLE_1 = torch.tensor([-3.0, -3.0, 9.0], dtype=torch.float64)[:, None]


def heights(gradients: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """``<g, clip(g_i)>`` and the same of the mirror images ``2 g - g_i``, built and clipped."""
    g = gradients.mean(0)
    return clipped(gradients, clip) @ g, clipped(2 * g - gradients, clip) @ g


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("clip", [None, 0.8, 20.0])
def test_a_networks_symmetry_is_that_of_its_dense_gradients(
    dtype: torch.dtype, clip: float | None
) -> None:
    sample = network(dtype=dtype).sample(Flat(3.5))
    gradients = dense(sample)
    g, c = gradients.mean(0), 3.5 if clip is None else clip
    straight, mirrored = heights(gradients, c)
    near = {"abs": float(g.norm() * c) * (1e-9 if dtype == torch.float64 else 1e-5)}
    found = symmetry(sample, clip)
    assert found.clip == c
    assert found.gradient_norm == pytest.approx(float(g.norm()), rel=1e-5)
    assert found.alignment == pytest.approx(float(straight.mean()), **near)
    both = torch.cat([straight, mirrored])
    assert found.symmetric_alignment == pytest.approx(float(both.mean()), **near)
    assert found.bias == pytest.approx(float(straight.mean() - both.mean()), **near)
    small = ((gradients - g).norm(dim=1) < c / 4).double().mean()
    assert found.small_noise == pytest.approx(float(small))
    bound = float(g.norm()) * min(float(g.norm()), 0.75 * c) * float(small)
    assert found.lower_bound == pytest.approx(bound, **near)
    cosines = torch.cosine_similarity(gradients, g[None], 1)
    torch.testing.assert_close(found.cosines, cosines, rtol=0, atol=1e-5)
    assert abs(found.bias) <= found.wasserstein + near["abs"]


def transported(first: Tensor, second: Tensor) -> float:
    """The cheapest coupling of two samples with the cost ``|a - b|``, over all of them."""
    n, m = len(first), len(second)
    cost = (first[:, None] - second[None]).abs().flatten().numpy()
    rows_sum = np.kron(np.eye(n), np.ones(m))
    columns_sum = np.kron(np.ones(n), np.eye(m))
    marginals = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    found = linprog(cost, A_eq=np.vstack([rows_sum, columns_sum]), b_eq=marginals)
    return float(found.fun)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("records", [2, 5])
def test_the_wasserstein_distance_is_the_cheapest_coupling(seed: int, records: int) -> None:
    gradients = normal(records, 3, seed=seed) * 2 + 0.4
    straight, mirrored = heights(gradients, 1.0)
    expected = transported(straight, torch.cat([straight, mirrored]))
    assert symmetry(rows(gradients)).wasserstein == pytest.approx(expected, abs=1e-9)


def test_a_sample_with_its_mirror_image_has_neither_bias_nor_distance() -> None:
    noise = normal(30, 4) * 3
    g = torch.tensor([0.5, -1.0, 0.2, 0.0], dtype=torch.float64)
    found = symmetry(rows(torch.cat([g + noise, g - noise])))
    assert found.bias == pytest.approx(0.0, abs=1e-14)
    assert found.wasserstein == pytest.approx(0.0, abs=1e-14)
    assert found.alignment > 0


def test_symmetric_distributions_have_none_in_the_limit() -> None:
    g = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    few, many = (symmetry(rows(g + 2 * normal(size, 3))) for size in (100, 40_000))
    # Both fall with the root of the number of records, here to about a twentieth.
    assert many.wasserstein < 0.15 * few.wasserstein
    assert many.wasserstein < 0.02 * float(g.norm())
    assert abs(many.bias) < 0.01 * float(g.norm())


@pytest.mark.parametrize(("x", "sign"), [(0.0, -1), (2.0, 1)])
def test_the_bias_has_the_sign_of_the_skewness(x: float, sign: int) -> None:
    # Example 1 left of its optimum: the many pull back, the one that pulls on is cut. Right of it
    # the many are right. Every gradient is cut to one, so each height is plus or minus |g|.
    found = symmetry(rows(x - EXAMPLE_1))
    assert found.gradient_norm == pytest.approx(1.0)
    assert found.alignment == pytest.approx(sign / 3)
    assert found.symmetric_alignment == pytest.approx(0.0)
    assert found.bias == pytest.approx(sign / 3)
    assert found.wasserstein == pytest.approx(1 / 3)


@given(seeds, st.floats(0.05, 20), st.floats(0.01, 3), st.integers(1, 6))
def test_theorem_2_holds_on_symmetric_samples(
    seed: int, clip: float, spread: float, size: int
) -> None:
    noise = normal(12, size, seed=seed) * normal(12, 1, seed=seed + 1).exp() * spread
    g = normal(size, seed=seed + 2)
    found = symmetry(rows(torch.cat([g + noise, g - noise]), Flat(clip)))
    assume(not isinstance(found.bias, Undefined))
    assert found.alignment == pytest.approx(found.symmetric_alignment)
    assert found.alignment >= found.lower_bound - 1e-9
    # Symmetrised, any sample is one.
    skew = symmetry(rows(g + noise + noise.abs(), Flat(clip)))
    assert skew.symmetric_alignment >= skew.lower_bound - 1e-9


def test_the_cosine_test_is_calibrated_where_records_are_few() -> None:
    # Gradients symmetric about zero with more parameters than records: every one of them leans
    # towards the mean that it is part of, so a test with that mean would always reject.
    found = [symmetry(rows(normal(80, 300, seed=seed))) for seed in range(60)]
    assert all(float(one.cosines.mean()) > 0.09 for one in found)
    values = torch.tensor([one.cosine_p_value for one in found])
    assert 0.4 < float(values.mean()) < 0.6
    assert float((values < 0.05).double().mean()) <= 0.1
    moved = symmetry(rows(normal(80, 300) + 0.1)).cosine_p_value
    assert moved < 1e-2
    assert_undefined(symmetry(rows(normal(18, 3))).cosine_p_value, "only 9 cosines")
    assert isinstance(symmetry(rows(normal(20, 3))).cosine_p_value, float)


def test_projections_are_those_of_gaussian_planes() -> None:
    axes = projections(rows(torch.eye(50).double()), generator(), 40)
    assert axes.shape == (40, 50, 2)
    gradients = normal(7, 50, seed=3)
    found = projections(rows(gradients), generator(), 40)
    torch.testing.assert_close(found, gradients @ axes)
    # Squared norms are kept on average: each is a chi-squared of 80 degrees over 80.
    kept = found.square().sum(2).mean(0) / gradients.square().sum(1)
    assert float((kept - 1).abs().max()) < 4 * math.sqrt(2 / 80)
    assert projections(BAD["a record is NaN"](), generator()).shape == (8, 4, 2)


def test_what_cannot_be_told() -> None:
    still = symmetry(BAD["mean gradient zero"]())
    assert still.gradient_norm == 0.0
    assert still.small_noise == 0.0
    assert_undefined(still.bias, "the mean gradient is zero")
    free = symmetry(rows(normal(30, 3), Unclipped()))
    assert_undefined(free.clip, "does not clip")
    assert_undefined(free.alignment, "does not clip")
    given_one = symmetry(rows(normal(30, 3), Unclipped()), 1.0)
    assert given_one.bias == symmetry(rows(normal(30, 3))).bias
