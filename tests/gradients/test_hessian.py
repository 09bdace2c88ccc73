"""Per-record Hessian products against double backward, and a quadratic's closed form."""

import pytest
import torch
from torch import nn

from plumbline.gradients import capture, hvp
from tests.gradients.hessian_harness import assert_hessian_products_match_loop


class Pooled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), (5, 4)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 25, 2)
        ),
        (3, 1, 5, 5),
    ),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 9, 2)
        ),
        (3, 2, 5, 5),
    ),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), Pooled()),
        (3, 7, 4),
    ),
}


@pytest.mark.parametrize("mode", ["auto", "reverse"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_double_backward(name: str, mode: str) -> None:
    make, shape = MODELS[name]
    assert_hessian_products_match_loop(make().double(), torch.randn(shape).double(), mode=mode)


def test_a_quadratic_has_its_known_hessian() -> None:
    # loss_i = (x_i . w)^2 / 2 has the Hessian x_i x_i^T.
    model = nn.Linear(3, 1, bias=False).double()
    x, v = torch.randn(4, 3).double(), torch.randn(3).double()
    products = hvp(model, lambda net, x: net(x)[:, 0].square() / 2, x, {"weight": v[None]})
    expected = x * (x @ v)[:, None]
    assert torch.allclose(products.materialise()["weight"][:, 0], expected, atol=1e-14)


def test_gradients_are_vectors() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = torch.randn(5, 3).double()

    def losses(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net(x)[:, 0].square()

    own = capture(model, losses, x)
    one = hvp(model, losses, x, own).materialise()
    other = hvp(model, losses, x, own.materialise()).materialise()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_unknown_name_is_refused() -> None:
    model = nn.Linear(3, 1)
    x = torch.randn(2, 3)
    with pytest.raises(KeyError, match="wieght"):
        hvp(model, lambda net, x: net(x)[:, 0], x, {"wieght": torch.zeros(1, 3)})
