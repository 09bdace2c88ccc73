"""Sums of Hessian products of networks of linear layers, against the products of every record."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.gradients import capture, hvp
from plumbline.gradients.summed_hessian import only_linear, summed_hvp

RECORDS = 6


def mlp(activation: nn.Module | None = None, *, bias: bool = True) -> nn.Sequential:
    middle = nn.Tanh() if activation is None else activation
    return nn.Sequential(nn.Linear(4, 5, bias=bias), middle, nn.Linear(5, 5), nn.Tanh(),
                         nn.Linear(5, 2, bias=bias))  # fmt: skip


def frozen(*names: str) -> nn.Sequential:
    model = mlp()
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


class Skipping(nn.Module):
    """Inputs that go two ways, and an operation in place on a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x + self.first(x).sigmoid_())


def losses_of(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    target = torch.arange(len(x)) % 2
    return lambda: F.cross_entropy(model(x).reshape(len(x), 2), target, reduction="none")


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The same losses of each record, for the engine."""
    return F.cross_entropy(model(batch[0]).reshape(-1, 2), batch[1], reduction="none")


def trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    "model",
    [
        mlp(),
        mlp(bias=False),
        mlp(nn.ReLU(inplace=True)),
        nn.Linear(4, 2),
        Skipping(),
        frozen("0.weight", "4.bias"),
        frozen("0.weight", "0.bias", "2.weight"),
    ],
    ids=["mlp", "no bias", "in place", "one layer", "skipping", "frozen", "frozen layer"],
)
def test_equals_the_sum_of_each_records_product(model: nn.Module) -> None:
    model = model.double()
    x = torch.randn(RECORDS, 4).double()
    batch = x, torch.arange(RECORDS) % 2
    parameters, losses = trainable(model), losses_of(model, x)
    scales = torch.randn(3, RECORDS).double()
    first, second = ({n: torch.randn_like(p) for n, p in parameters.items()} for _ in range(2))
    own = capture(model, cross_entropy, batch).materialise()

    def by_record(name: str) -> Tensor:
        parts = zip(scales, (first[name][None], second[name][None], own[name]), strict=True)
        shape = (-1, *(1,) * first[name].dim())
        return sum((scale.reshape(shape) * part for scale, part in parts), torch.zeros(()))

    vectors = {name: by_record(name) for name in parameters}
    expected = hvp(model, cross_entropy, batch, vectors).sum()
    assert only_linear(parameters, losses)
    found = summed_hvp(parameters, losses, [(scales[0], first), (scales[1], second)], scales[2])
    size = torch.stack([value.norm() for value in expected.values()]).norm()
    assert found is not None
    assert list(found) == list(parameters)
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 1e-12 * size, name
    assert all(parameter.grad is None for parameter in parameters.values())


def test_losses_without_curvature_have_none() -> None:
    model = nn.Linear(4, 1)
    x = torch.randn(RECORDS, 4)
    parameters, zero = dict(model.named_parameters()), torch.zeros(RECORDS)
    assert only_linear(parameters, lambda: model(x)[:, 0])
    found = summed_hvp(parameters, lambda: model(x)[:, 0], [(zero, parameters)], zero)
    assert found is not None
    assert all(not value.any() for value in found.values())


class Twice(nn.Module):
    """A layer that is used twice: its gradient is a sum of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.layer(x).tanh()).tanh())


class Penalised(nn.Module):
    """A weight that is used outside its layer as well, by a view made before the model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).double()
        self.view = self.layer.weight.view(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.view.square().sum()


class Doubled(nn.Module):
    """Two rows for each record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.cat([x, 2 * x])).tanh().reshape(2, len(x), 2).sum(0)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(4, 2), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2)), (RECORDS, 1, 4)),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), (RECORDS, 4)),
        (nn.Sequential(nn.Linear(4, 1), nn.Flatten()), (RECORDS, 2, 4)),
        (Twice(), (RECORDS, 4)),
        (Penalised(), (RECORDS, 4)),
        (Doubled(), (RECORDS, 4)),
        (Unused(), (RECORDS, 4)),
    ],
    ids=["convolution", "norm", "sequence", "used twice", "a view", "two rows", "unused"],
)
def test_other_networks_are_told(model: nn.Module, shape: tuple[int, ...]) -> None:
    model = model.double()
    parameters, losses = trainable(model), losses_of(model, torch.randn(shape).double())
    assert not only_linear(parameters, losses)
    if not isinstance(model, Penalised):  # which only the comparison with autograd shows
        assert summed_hvp(parameters, losses, [], torch.ones(RECORDS)) is None
