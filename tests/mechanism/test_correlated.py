import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from plumbline.mechanism.correlated import Correlated, mixing_sensitivity
from plumbline.mechanism.noise import add_noise
from plumbline.mechanism.random_source import SeededSource
from plumbline.noise import banded

MANY = 4000


def matrix(coefficients: tuple[float, ...], steps: int) -> np.ndarray:
    """C, written out."""
    found = np.zeros((steps, steps))
    for row in range(steps):
        for k, one in enumerate(coefficients[: row + 1]):
            found[row, row - k] = one
    return found


def sums(steps: int, numel: int = 5) -> Tensor:
    return torch.randn(
        steps, numel, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )


def answers(
    coefficients: tuple[float, ...], exact: Tensor, noise: Tensor, steps: list[int] | None = None
) -> Tensor:
    """What is decoded from rows to which `noise` is added, `[T, numel]`."""
    correlated = Correlated(coefficients)
    found = []
    for place, step in enumerate(range(len(exact)) if steps is None else steps):
        value = {"value": exact[place]}
        row = correlated.row(value, 1.0, step)["row"]
        found.append(correlated.decoded({"row": row + noise[place]}, value, step)["value"])
    return torch.stack(found)


@pytest.mark.parametrize("bands", [2, 3, 8])
def test_rows_are_those_of_c_times_the_sums(bands: int) -> None:
    c, exact = banded(bands, momentum=0.9).coefficients(20), sums(20)
    correlated = Correlated(c)
    rows = []
    for step in range(20):
        value = {"a": exact[step, :2], "b": exact[step, 2:].reshape(3, 1)}
        row = correlated.row(value, 1.0, step)
        rows.append(row["row"])
        answer = correlated.decoded(row, value, step)
        assert {name: t.shape for name, t in answer.items()} == {"a": (2,), "b": (3, 1)}
        torch.testing.assert_close(answer["b"], value["b"], rtol=1e-10, atol=1e-10)
    wanted = matrix(c, 20) @ exact.numpy()
    np.testing.assert_allclose(torch.stack(rows).numpy(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bands", [2, 5])
def test_the_noise_has_the_covariance_of_the_inverse(bands: int) -> None:
    """Drawn by the mechanism: the covariance of 4,000 coordinates, against C^-1 C^-T."""
    steps, c = 9, banded(bands).coefficients(9)
    correlated, source, noise = Correlated(c), SeededSource(4), []
    value = {"value": torch.full((MANY,), 0.5, dtype=torch.float64)}
    for step in range(steps):
        row = correlated.row(value, 2.0, step)
        noisy = add_noise(row, 2.0, source.once("noise", step))
        answer = correlated.decoded(noisy, value, step)
        noise.append(((answer["value"] - 0.5) / 2).numpy())
    found = np.cov(np.array(noise))
    inverse = np.linalg.inv(matrix(c, steps))
    wanted = inverse @ inverse.T
    # An entry varies by at most the root of twice the product of its variances, over 4,000.
    spread = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)) * 2 / MANY)
    assert (np.abs(found - wanted) < 5 * spread).all()
    assert abs(wanted[0, 1]) > 15 * spread[0, 1]  # so independent noise would not pass


def test_prefix_sums_carry_less_noise_than_independent_noise_would() -> None:
    c = banded(16).coefficients(64)
    noise = torch.randn(64, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = answers(c, torch.zeros(64, 500, dtype=torch.float64), noise).cumsum(0)
    assert float(found.square().mean()) < 0.4 * float(noise.cumsum(0).square().mean())


@pytest.mark.parametrize("bands", [2, 4, 7])
def test_a_record_moves_its_rows_by_no_more_than_its_contribution(bands: int) -> None:
    """At most once in every `bands` steps, and in each part: all rows together, and disjoint."""
    steps, c = 30, banded(bands, momentum=0.9).coefficients(30)
    for part in range(bands):
        took = np.zeros((steps, steps // bands + 1))
        for number, step in enumerate(range(part, steps, bands)):
            took[step, number] = 1.0
        moved = matrix(c, steps) @ took
        assert (np.linalg.norm(moved, axis=0) <= 1 + 1e-15).all()
        assert ((moved != 0).sum(1) <= 1).all()


@pytest.mark.parametrize("gap", [2, 3, 10])
def test_a_step_that_is_passed_over_begins_a_new_block(gap: int) -> None:
    c, exact, noise = banded(4).coefficients(9), sums(9), sums(9)
    steps = [*range(5), *range(4 + gap, 8 + gap)]
    found = answers(c, exact, noise, steps)
    apart = [answers(c, exact[part], noise[part]) for part in (slice(5), slice(5, 9))]
    torch.testing.assert_close(found, torch.cat(apart), rtol=0, atol=0)


def test_a_row_that_was_not_decoded_is_not_mixed_into_later_ones() -> None:
    """The step failed between its noise and its answer."""
    correlated, exact = Correlated(banded(3).coefficients(9)), sums(3)
    value = [{"value": one} for one in exact]
    correlated.decoded(correlated.row(value[0], 1.0, 0), value[0], 0)
    correlated.row(value[1], 1.0, 1)
    assert correlated.follows(1)
    assert not correlated.follows(2)
    first = Correlated(banded(3).coefficients(9)).row(value[2], 1.0, 0)
    assert torch.equal(correlated.row(value[2], 1.0, 2)["row"], first["row"])


def test_a_bound_that_changes_is_refused() -> None:
    correlated, value = Correlated((0.8, 0.5)), {"value": torch.ones(3)}
    correlated.decoded(correlated.row(value, 1.0, 0), value, 0)
    with pytest.raises(ValueError, match="its bound has changed"):
        correlated.row(value, 1.5, 1)


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="'gradient' holds a value that is not finite"):
        Correlated((0.8, 0.5)).row({"gradient": torch.tensor([1.0, math.nan])}, 1.0, 0)


@pytest.mark.parametrize("bands", [2, 16])
def test_the_rounding_of_mixtures_is_covered(bands: int) -> None:
    """Rows in float64 against exact ones, for sums as large as they can be."""
    records, c = 1_000_000, banded(bands).coefficients(100)
    exact = sums(bands, 3)
    exact *= records / exact.norm(dim=1, keepdim=True)
    correlated, off = Correlated(c), 0.0
    for step in range(bands):
        value = {"value": exact[step]}
        row = correlated.row(value, 1.0, step)
        correlated.decoded(row, value, step)
        for place, found in enumerate(row["row"].tolist()):
            terms = [
                Fraction(c[k]) * Fraction(float(exact[step - k, place])) for k in range(step + 1)
            ]
            off += float(Fraction(found) - sum(terms)) ** 2
    bound = mixing_sensitivity(1.0, bands, records)
    assert 2 * math.sqrt(off) < bound < 1e-6
    assert mixing_sensitivity(1.0, 1, records) == 0


@pytest.mark.parametrize("bands", [(0.8, 0.6), (3.0, 3.0), (0.0, 0.5), (-0.5, 0.5)])
def test_bands_that_move_a_record_further_than_the_noise_covers_are_refused(
    bands: tuple[float, ...],
) -> None:
    with pytest.raises(ValueError, match="the sum of their squares at most 1 exactly"):
        Correlated(bands)  # 0.8 and 0.6 are floats whose squares add up to 1 + 4.4e-17
