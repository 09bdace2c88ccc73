import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import plumbline as pl
from plumbline import noise
from plumbline.mechanism.calibration import Budget, BudgetError


def toeplitz(column: np.ndarray) -> np.ndarray:
    """The lower-triangular matrix with this first column."""
    size = len(column)
    return sum(np.diag(np.full(size - k, column[k]), -k) for k in range(size))


def workload(steps: int, momentum: float, decay: float) -> np.ndarray:
    """Row t: what the gradients of steps 0 to t are in the weights after step t."""
    shrink, sums = np.zeros((steps, steps)), np.zeros((steps, steps))
    for t in range(steps):
        for i in range(t + 1):
            shrink[t, i], sums[t, i] = (1 - decay) ** (t - i), momentum ** (t - i)
    return shrink @ sums


def test_it_is_a_public_name() -> None:
    assert pl.noise is noise
    assert pl.noise.banded(bands=3) == noise.Banded(bands=3, parts=3)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_the_root_is_the_square_root_of_the_workload(momentum: float, decay: float) -> None:
    steps = 12
    bands = noise.banded(steps, momentum=momentum, decay=decay).coefficients(steps)
    root = toeplitz(np.array(bands) / bands[0])
    np.testing.assert_allclose(root @ root, workload(steps, momentum, decay), rtol=1e-12)


def test_without_momentum_they_are_central_binomials() -> None:
    found = np.array(noise.banded(6).coefficients(10))
    wanted = np.array([math.comb(2 * k, k) / 4**k for k in range(6)])
    np.testing.assert_allclose(found / found[0], wanted, rtol=1e-14)


@pytest.mark.parametrize("strategy", ["root", "optimised"])
@pytest.mark.parametrize("bands", [1, 2, 3, 7, 16, 61, 200])
def test_no_column_is_longer_than_one_in_exact_arithmetic(bands: int, strategy: Any) -> None:
    for momentum in (0.0, 0.5, 0.9):
        made = noise.banded(bands, momentum=momentum, strategy=strategy)
        square = sum(Fraction(one) ** 2 for one in made.coefficients(100))
        assert 1 - Fraction(1, 2**40) < square <= 1
    assert made.coefficients(100) == (1.0,) if bands == 1 else True


@pytest.mark.parametrize("bands", [1, 3, 9])
def test_the_error_is_that_of_the_matrices(bands: int) -> None:
    steps, momentum, decay = 9, 0.8, 0.02
    c = np.zeros(steps)
    c[:bands] = noise.banded(bands, momentum=momentum, decay=decay).coefficients(steps)
    rows = workload(steps, momentum, decay) @ np.linalg.inv(toeplitz(c))
    wanted = math.sqrt((rows**2).sum() / steps)
    found = noise.prefix_error(c[:bands], steps, momentum=momentum, decay=decay)
    assert found == pytest.approx(wanted, rel=1e-12)


def test_optimised_bands_are_no_worse_and_are_a_minimum() -> None:
    steps, momentum = 200, 0.9
    root = noise.banded(8, momentum=momentum).coefficients(steps)
    made = noise.banded(8, momentum=momentum, strategy="optimised").coefficients(steps)
    best = noise.prefix_error(made, steps, momentum=momentum)
    assert best < noise.prefix_error(root, steps, momentum=momentum)
    for k in range(8):
        for change in (-1e-2, 1e-2):
            other = np.array(made)
            other[k] += change
            error = noise.prefix_error(other / np.linalg.norm(other), steps, momentum=momentum)
            assert error > best * (1 - 1e-9)


def test_the_optimizers_momentum_counts_where_none_is_given() -> None:
    given = noise.banded(4, momentum=0.9).coefficients(50)
    assert noise.banded(4).coefficients(50, momentum=0.9) == given
    assert noise.banded(4, momentum=0.9).coefficients(50, momentum=0.1) == given


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"bands": 0}, "bands is 0"),
        ({"bands": True}, "bands is True"),
        ({"bands": 2.0}, "bands is 2.0"),
        ({"bands": 4, "parts": 3}, "parts is 3; it must be a whole number of at least bands, 4"),
        ({"bands": 1, "parts": 3}, "independent noise needs no parts"),
        ({"bands": 2, "momentum": 1.0}, "momentum is 1.0"),
        ({"bands": 2, "decay": -0.1}, "decay is -0.1"),
        ({"bands": 2, "strategy": "best"}, "strategy is 'best'"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        noise.banded(**given)


def budget(epsilon: float, **given: Any) -> Budget:
    fields = {"delta": 1e-5, "epochs": 20, "expected_batch_size": 4000} | given
    return Budget(epsilon=epsilon, **fields)


def test_it_pays_at_a_large_epsilon_and_not_at_a_small_one() -> None:
    small, large = (noise.compare(budget(one), 25_000, bands=(2, 4, 8)) for one in (1, 8))
    assert [one.bands for one in small] == [1, 2, 4]  # at 8 the rate in a part would be above 1
    assert small[0].error == large[0].error == 1
    assert noise.best(small).bands == 1
    assert noise.best(large).bands == 4
    assert noise.best(large).error == pytest.approx(0.88, abs=0.005)
    assert small[2].noise_multiplier > small[1].noise_multiplier > small[0].noise_multiplier


def test_a_budget_that_cannot_be_met_is_refused_and_not_left_out() -> None:
    with pytest.raises(BudgetError, match="expected_batch_size"):
        noise.compare(budget(1, expected_batch_size=30_000), 25_000)
