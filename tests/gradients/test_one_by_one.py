"""``isolation="loop"``: one record after the other agrees with all records at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients import PerSampleGradients, Perturbation, capture, hvp
from plumbline.record_random import Draws
from tests.gradients.harness import output_losses


class Pair(nn.Module):
    """Two named inputs, a tied weight and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.end = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.end.weight = self.table.weight
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        return self.end(torch.tanh(self.table(tokens).mean(1) + x))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)),
        lambda: torch.randn(5, 4).double(),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)
        ),
        lambda: torch.randn(5, 1, 4, 4).double(),
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        lambda: torch.randn(5, 3, 4).double(),
    ),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        lambda: torch.randn(5, 4).double(),
    ),
    "named inputs": (
        Pair,
        lambda: {"tokens": torch.randint(0, 6, (5, 3)), "x": torch.randn(5, 4).double()},
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Any]:
    make, batch = CASES[request.param]
    return make().double(), batch()


def assert_same(one: PerSampleGradients, other: PerSampleGradients) -> None:
    assert one.names == other.names
    torch.testing.assert_close(one.losses, other.losses, rtol=1e-12, atol=1e-14)
    theirs = other.materialise()
    for name, rows in one.materialise().items():
        torch.testing.assert_close(rows, theirs[name], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(one.norms(), other.norms(), rtol=1e-9, atol=1e-12)


def both(model: nn.Module, batch: Any, *args: Any, **named: Any) -> list[PerSampleGradients]:
    return [
        capture(model, output_losses, batch, *args, isolation=isolation, **named)
        for isolation in ("vmap", "loop")
    ]


def test_gradients(case: tuple[nn.Module, Any]) -> None:
    assert_same(*both(*case))


def test_every_record_at_its_own_weights(case: tuple[nn.Module, Any]) -> None:
    first, _ = both(*case)
    assert_same(*both(*case, Perturbation(first, 0.1 / first.norms())))


def test_one_offset_for_all_records(case: tuple[nn.Module, Any]) -> None:
    offset = {name: 0.1 * torch.randn_like(p) for name, p in case[0].named_parameters()}
    assert_same(*both(*case, offset))


def test_hessian_products(case: tuple[nn.Module, Any]) -> None:
    model, batch = case
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        own = capture(model, output_losses, batch)
        one = {name: torch.randn_like(p) for name, p in model.named_parameters()}
        for vectors in (own, one):
            products = [
                hvp(model, output_losses, batch, vectors, isolation=isolation)
                for isolation in ("vmap", "loop")
            ]
            assert_same(*products)


def test_views_of_a_record() -> None:
    make, batch = CASES["mlp"]
    model, x = make().double(), batch()
    first = capture(model, output_losses, x)
    index = torch.tensor([0, 0, 2, 1, 4, 4])
    assert_same(*both(model, x[index] + 0.1, Perturbation(first, 0.1, index)))


def test_several_rows_are_one_record() -> None:
    make, _ = CASES["mlp"]
    model, x = make().double(), torch.randn(6, 4).double()
    for found in both(model, x, rows=3):
        single = capture(model, output_losses, x)
        assert_same(found, single.pool(torch.tensor([0, 0, 0, 1, 1, 1])))


@pytest.mark.parametrize("records", [0, 1])
def test_few_records(records: int) -> None:
    make, batch = CASES["mlp"]
    assert_same(*both(make().double(), batch()[:records]))


@pytest.mark.parametrize("isolation", ["vmap", "loop"])
def test_dropout_belongs_to_the_record(isolation: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.Linear(20, 2)).double()
    x, numbers = torch.randn(5, 4).double(), torch.tensor([4, 9, 1, 0, 2])

    def losses(which: list[int]) -> Tensor:
        draws = Draws(numbers[which], "step")
        return capture(model, output_losses, x[which], random=draws, isolation=isolation).losses

    whole = losses([0, 1, 2, 3, 4])
    for which in ([4, 3, 2, 1, 0], [2], [1, 3]):
        torch.testing.assert_close(losses(which), whole[which])


def test_the_generators_and_the_model_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 20), nn.Dropout(0.5), nn.Linear(20, 2)).double()
    x = torch.randn(5, 4).double()
    parameters = list(model.parameters())
    state = torch.get_rng_state()
    capture(model, output_losses, x, random=Draws(torch.arange(5), "step"), isolation="loop")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(parameter.grad is None for parameter in parameters)
