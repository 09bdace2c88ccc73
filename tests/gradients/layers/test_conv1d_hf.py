import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients import capture
from plumbline.gradients.outer import Outer
from tests.gradients.harness import (
    PRECISIONS,
    Precision,
    assert_matches_loop,
    output_losses,
)
from tests.gradients.hessian_harness import assert_hessian_products_match_loop

SHAPES = pytest.mark.parametrize(
    "shape", [(5, 4), (3, 5, 4), (4, 4, 4), (3, 2, 5, 4), (1, 3, 4), (3, 1, 4)], ids=str
)


class Conv1D(nn.Module):
    """As transformers has it."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 2)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Product(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 6) / 2)
        self.second = nn.Parameter(torch.randn(6, 3) / 2)
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.by(torch.tanh(self.by(x, self.first)), self.second)

    def by(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.form == "@":
            return x @ weight
        return torch.matmul(x, weight) if self.form == "torch.matmul" else x.matmul(weight)


@PRECISIONS
@SHAPES
def test_conv1d(shape: tuple[int, ...], precision: Precision) -> None:
    model = nn.Sequential(Conv1D(6, 4), nn.Tanh(), Conv1D(3, 6))
    assert_matches_loop(model, torch.randn(shape), **precision)


def test_conv1d_of_transformers() -> None:
    theirs = pytest.importorskip("transformers.pytorch_utils").Conv1D
    model, x = nn.Sequential(theirs(6, 4), nn.Tanh(), theirs(3, 6)), torch.randn(3, 5, 4)
    found = capture(model, output_losses, x)
    assert isinstance(found.term("0.weight"), Outer)
    assert_matches_loop(model, x)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter(frozen: str) -> None:
    model = Conv1D(6, 4)
    model.get_parameter(frozen).requires_grad_(False)
    assert_matches_loop(model, torch.randn(3, 5, 4))


@pytest.mark.covering
@PRECISIONS
@SHAPES
@pytest.mark.parametrize("form", ["@", "torch.matmul", "Tensor.matmul"])
def test_products(form: str, shape: tuple[int, ...], precision: Precision) -> None:
    assert_matches_loop(Product(form), torch.randn(shape), **precision)


def test_a_product_is_a_linear_layer() -> None:
    model, x = Product("@"), torch.randn(3, 5, 4)
    found = capture(model, output_losses, x)
    assert isinstance(found.term("first"), Outer)


@PRECISIONS
def test_sequence_first(precision: Precision) -> None:
    assert_matches_loop(Product("@"), torch.randn(5, 3, 4), batch_dim=1, **precision)


class Otherwise(nn.Module):
    """Products that are no linear layer, for the general rule."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "scaled":
            return torch.addmm(self.bias, x[:, 0], self.weight, alpha=2.0, beta=0.5)
        if self.form == "from the left":
            return self.weight @ x
        if self.form == "by a vector":
            return x @ self.bias
        if self.form == "of weights":
            return x @ (self.weight @ self.weight)
        return x @ self.weight.T


@PRECISIONS
@pytest.mark.parametrize(
    "form", ["scaled", "from the left", "by a vector", "of weights", "transposed"]
)
def test_other_products(form: str, precision: Precision) -> None:
    assert_matches_loop(Otherwise(form), torch.randn(3, 4, 4), **precision)


def test_hessian_products() -> None:
    model = nn.Sequential(Conv1D(6, 4), nn.Tanh(), Conv1D(3, 6))
    assert_hessian_products_match_loop(model, torch.randn(3, 5, 4))
