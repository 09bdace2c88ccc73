"""A short private run on every network: the loss falls, and nothing warns."""

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from tests.models.networks import BATCH_NORM, NETWORKS, Network, each

RECORDS, STEPS = 12, 4
LOSS = nn.CrossEntropyLoss(reduction="none")


def separable(network: Network) -> tuple[Tensor, Tensor]:
    """Two well-separated clouds of records, with their labels."""
    labels = torch.arange(RECORDS) % 2
    return network.records(2)[labels] + 0.3 * network.records(RECORDS), labels


def mean_loss(model: nn.Module, records: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        loss = float(LOSS(model(records), labels).mean())
    model.train()
    return loss


def train(model: nn.Module, data: tuple[Tensor, Tensor], method: pl.methods.Method) -> None:
    # Noise far below what privacy takes: with a dozen records nothing would be learnt otherwise.
    budget = pl.Budget(
        noise_multiplier=0.05, delta=1e-3, steps=STEPS, expected_batch_size=RECORDS - 2
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    private = pl.make_private(
        model, optimizer, data, loss=LOSS, method=method, budget=budget, accountant="rdp", seed=1
    )
    for batch in private:
        private.step(batch)
    private.close()
    assert private.steps_done == STEPS


@each(NETWORKS, long=True)
def test_a_private_run_trains(network: Network) -> None:
    model, data = network.reduced(), separable(network)
    before = mean_loss(model, *data)
    train(model, data, pl.methods.dpsgd(clip=1.0))
    # Down by 0.2 at least: of the sigmoids that come before Dutch's loss, 0.38 is all there is.
    assert mean_loss(model, *data) < before - 0.2


def test_batch_norm_trains_with_public_companions() -> None:
    model, data = BATCH_NORM.reduced(), separable(BATCH_NORM)
    before = mean_loss(model, *data)
    train(model, data, pl.methods.batch_clipping(BATCH_NORM.records(10), companions=3, clip=1.0))
    assert mean_loss(model, *data) < before - 0.2


def test_batch_norm_is_refused_by_other_methods() -> None:
    model, data = BATCH_NORM.reduced(), separable(BATCH_NORM)
    with pytest.raises(pl.gradients.RecordsMixError, match="BatchNorm2d"):
        train(model, data, pl.methods.dpsgd(clip=1.0))
