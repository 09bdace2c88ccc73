"""Cosines of the ascent directions against dense gradients and by hand."""

import pytest
import torch

from plumbline.clipping import Flat
from plumbline.diagnostics import adjacent_batches, ascent_directions, successive_cosines
from tests.diagnostics.problems import (
    BAD,
    assert_undefined,
    dense,
    flat,
    network,
    normal,
    rows,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_networks_cosines_are_those_of_its_dense_gradients(dtype: torch.dtype) -> None:
    problem = network(dtype=dtype)
    sample = problem.sample()
    previous = {name: torch.randn_like(p) for name, p in problem.model.named_parameters()}
    found = ascent_directions(sample, previous)
    gradients = dense(sample)
    g = gradients.mean(0)
    cosines = torch.cosine_similarity(gradients, g[None], 1)
    assert found.bam == pytest.approx(float(cosines.mean()), abs=1e-5)
    assert found.bam_positive == pytest.approx(float((cosines > 0).double().mean()))
    expected = torch.cosine_similarity(flat(previous), g, 0)
    assert found.dp_sat == pytest.approx(float(expected), abs=1e-5)


def test_by_hand() -> None:
    gradients = torch.tensor([[3.0, 0], [0, 4.0], [0, 0], [0, -1.0]], dtype=torch.float64)
    previous = {"weight": torch.tensor([0.0, -2.0], dtype=torch.float64)}
    found = ascent_directions(rows(gradients), previous)
    # g is along (1, 1); a record that is zero points nowhere.
    root = 0.5**0.5
    assert found.dp_sat == pytest.approx(-root)
    assert found.bam == pytest.approx((root + root - root) / 3)
    assert found.bam_positive == pytest.approx(2 / 3)


def test_one_record_points_along_its_own_mean() -> None:
    found = ascent_directions(BAD["one record"]())
    assert found.bam == pytest.approx(1.0)
    assert found.bam_positive == 1.0
    assert_undefined(found.dp_sat, "no earlier released gradient")


@pytest.mark.parametrize("case", ["every gradient zero", "mean gradient zero"])
def test_without_a_mean_gradient_there_is_no_angle(case: str) -> None:
    found = ascent_directions(BAD[case](), {"weight": torch.ones(3).double()})
    for value in vars(found).values():
        assert_undefined(value, "zero")
    assert_undefined(ascent_directions(BAD[case]()).dp_sat, "no earlier released gradient")


def test_a_previous_gradient_that_is_no_direction() -> None:
    for value, reason in ((0.0, "zero"), (float("nan"), "not finite")):
        previous = {"weight": torch.full((3,), value).double()}
        assert_undefined(ascent_directions(rows(normal(4, 3)), previous).dp_sat, reason)


def test_successive_gradients() -> None:
    steps = [{"w": torch.tensor(v)} for v in ([1.0, 0], [1.0, 1.0], [0, 2.0], [0, 0], [0, 1.0])]
    found = successive_cosines(steps)
    assert found[:2] == [pytest.approx(0.5**0.5)] * 2
    assert_undefined(found[2], "zero")
    assert_undefined(found[3], "zero")
    assert successive_cosines(steps[:1]) == []


def test_adjacent_batches_have_no_record_in_common() -> None:
    """Records of two steps along axes of their own: only a common record would show a cosine."""
    before, after = rows(torch.eye(12).double()), rows(3 * torch.eye(12).double())
    for size in (1, 3, 6):
        found = adjacent_batches(before, after, size, torch.Generator().manual_seed(size))
        assert found == 0
    assert_undefined(adjacent_batches(before, after, 7, torch.Generator()), "no two batches of 7")


def test_adjacent_batches_are_clipped_means() -> None:
    """Each of the two directions is one record's, and the longer one counts as far as it is cut."""
    before = rows(torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double())
    after = rows(torch.tensor([[0.6, 0.8], [30.0, 40.0]]).double())
    assert adjacent_batches(before, after, 1, torch.Generator()) == pytest.approx(0.6)


def test_larger_batches_are_more_alike() -> None:
    """Of n records with mean m and unit noise in d dimensions: about n m^2 / (n m^2 + d)."""
    gradients = 0.1 * torch.ones(20) + normal(4096, 20) * 0.5
    sample = rows(gradients.double(), Flat(100.0))
    for size in (16, 256):
        found = adjacent_batches(sample, sample, size, torch.Generator().manual_seed(0), pairs=50)
        signal = size * 20 * 0.1**2
        assert found == pytest.approx(signal / (signal + 20 * 0.25), abs=0.08)
