"""FairLens on networks of linear layers, whose Hessian products are summed, and on others."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients import hessian
from plumbline.methods.base import Method
from tests.methods.literal import CHUNKS, CLIP, Run, close, images, network, train
from tests.methods.test_references_baselines import FairLens, with_groups

METHOD: Method = pl.methods.fairlens(CLIP, weights=FairLens.weights)


def mlp(*, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 8),
            nn.Tanh(), nn.Linear(8, 2),
        ).double()  # fmt: skip
    with torch.no_grad():
        model[-1].weight.mul_(12)  # so that some records are clipped, and some are not
    return model


def trained(model: nn.Module, **settings: Any) -> Run:
    torch.manual_seed(11)
    return train(METHOD, model, **with_groups(), **settings)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every network one whose records have a product each."""
    module = importlib.import_module("plumbline.methods.fairlens")  # the name is the function's
    monkeypatch.setattr(module, "only_linear", lambda parameters, losses: False)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an entry whenever products are computed for each record."""
    seen: list[int] = []
    real = hessian._products

    def counted(*args: Any, **settings: Any) -> Any:
        seen.append(1)
        return real(*args, **settings)

    monkeypatch.setattr(hessian, "_products", counted)
    return seen


@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
def test_the_summed_products_are_the_literal_loops(most: int | None, products: list[int]) -> None:
    FairLens(trained(mlp(), max_physical_batch=most)).check()
    assert not products


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_sum_is_that_of_each_records_product(
    dropout: float, products: list[int], request: pytest.FixtureRequest
) -> None:
    quick = trained(mlp(dropout=dropout))
    assert bool(products) == bool(dropout)  # the masks of each record, or no masks at all
    request.getfixturevalue("never")
    slow = trained(mlp(dropout=dropout))
    assert products
    for found, expected in zip(quick.updates, slow.updates, strict=True):
        assert (found - expected).norm() <= 1e-10 * expected.norm()


def test_a_network_with_a_convolution_has_a_product_for_each_record(products: list[int]) -> None:
    FairLens(trained(network())).check()
    assert products


def test_a_record_that_is_not_finite_leaves_only_noise() -> None:
    def with_record(value: float) -> list[Tensor]:
        x, y = images()
        x[3] = value
        run = trained(mlp(), data=(x, y))
        assert any(3 in batch for batch in run.batches)
        return run.updates

    assert all(torch.isfinite(update).all() for update in with_record(float("nan")))
    close(with_record(float("nan")), with_record(float("inf")))
