from typing import Any

import pytest
import torch
from torch import nn

from plumbline.gradients import capture, hvp
from tests.gradients.harness import PRECISIONS, Precision, assert_matches_loop, output_losses

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


@pytest.mark.parametrize("isolation", ["vmap", "loop"])
def test_hessian_products_are_finite_differences(isolation: Any) -> None:
    """Double backward through torch's own function is no oracle: it is wrong."""
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).double()
    x = torch.randn(5, 4).double()
    vector = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    found = hvp(model, output_losses, x, vector, isolation=isolation).materialise()
    step = 1e-5
    ahead, behind = (
        capture(model, output_losses, x, at={n: sign * step * v for n, v in vector.items()})
        for sign in (1, -1)
    )
    for name, rows in ahead.materialise().items():
        slope = (rows - behind.materialise()[name]) / (2 * step)
        torch.testing.assert_close(found[name], slope, rtol=1e-5, atol=1e-6)
