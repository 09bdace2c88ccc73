import pytest
import torch
from torch import nn

from tests.gradients.harness import PRECISIONS, Precision, assert_matches_loop

weight_norm = nn.utils.parametrizations.weight_norm


@PRECISIONS
@pytest.mark.parametrize("shape", [(5, 4), (5, 7, 4)], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_norms_along_any_dimension(
    dim: int | None, shape: tuple[int, ...], precision: Precision
) -> None:
    assert_matches_loop(weight_norm(nn.Linear(4, 3), dim=dim), torch.randn(shape), **precision)


@PRECISIONS
@pytest.mark.parametrize("dim", [0, 1])
def test_convolutions(dim: int, precision: Precision) -> None:
    layer = weight_norm(nn.Conv2d(2, 3, 3), dim=dim)
    assert_matches_loop(layer, torch.randn(5, 2, 6, 6), **precision)


@PRECISIONS
@pytest.mark.parametrize("frozen", ["original0", "original1"], ids=["length", "direction"])
@pytest.mark.parametrize("records", [5, 3], ids=["", "as many as rows"])
def test_one_of_the_two_frozen(frozen: str, records: int, precision: Precision) -> None:
    layer = weight_norm(nn.Linear(4, 3))
    getattr(layer.parametrizations.weight, frozen).requires_grad_(False)
    assert_matches_loop(layer, torch.randn(records, 4), **precision)
