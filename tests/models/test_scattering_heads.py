"""The models on scattering features: their sizes, their normalisation, and that they train."""

from typing import Any

import pytest
import torch
from torch import nn

import plumbline as pl
from plumbline.models import build
from plumbline.models.scattering_heads import Standardise
from plumbline.training.moments import private_moments
from tests.gradients.harness import assert_matches_loop, assert_unmoved_by_others
from tests.models.networks import Network, each
from tests.models.test_training import mean_loss, separable, train

LINEAR = Network("scattering-linear", 39_700, (81, 7, 7))
MNIST = Network("scattering-cnn-mnist", 33_066, (81, 7, 7))
CIFAR = Network("scattering-cnn-cifar", 187_210, (243, 8, 8))
HEADS = [LINEAR, MNIST, CIFAR]


@each(HEADS)
def test_size_and_shape(network: Network) -> None:
    model = network.whole()
    assert sum(p.numel() for p in model.parameters()) == network.count
    with torch.no_grad():
        assert model(network.records(2)).shape == (2, 10)


@each(HEADS)
def test_other_features_and_classes(network: Network) -> None:
    model = build(network.name, classes=3, in_channels=9, size=4, normalise=3)
    assert model(torch.randn(2, 9, 4, 4)).shape == (2, 3)


@each(HEADS)
@pytest.mark.parametrize("normalise", ["groups", "moments", None])
def test_records_do_not_mix_and_match_the_loop(network: Network, normalise: str | None) -> None:
    given: Any = {"groups": 3, "moments": (torch.randn(9), torch.rand(9) + 0.1), None: None}
    model = build(network.name, in_channels=9, size=4, normalise=given[normalise])
    records = torch.randn(3, 9, 4, 4)
    assert_unmoved_by_others(model, records)
    assert_matches_loop(model, records)


def test_groups_are_normalised_within_each_record() -> None:
    normaliser = LINEAR.whole()[0]  # type: ignore[index]
    assert isinstance(normaliser, nn.GroupNorm)
    assert not list(normaliser.parameters())
    found = normaliser(5 + 3 * LINEAR.records(2)).view(2, 27, 3 * 49)
    torch.testing.assert_close(found.mean(2), torch.zeros(2, 27), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.var(2, correction=0), torch.ones(2, 27), rtol=1e-3, atol=0)


def test_moments_standardise_each_channel() -> None:
    x = torch.randn(500, 4, 3, 3) * torch.tensor([1.0, 2, 3, 4])[:, None, None] + 7
    by_channel = x.transpose(0, 1).flatten(1)
    layer = Standardise(by_channel.mean(1), by_channel.var(1))
    found = layer(x).transpose(0, 1).flatten(1)
    torch.testing.assert_close(found.mean(1), torch.zeros(4), rtol=0, atol=1e-4)
    torch.testing.assert_close(found.std(1), torch.ones(4), rtol=1e-4, atol=0)
    assert not list(layer.parameters())
    assert set(layer.state_dict()) == {"mean", "variance"}
    torch.testing.assert_close(layer(x[:, :, 0, 0]), layer(x)[:, :, 0, 0])


@each(HEADS)
def test_a_private_run_trains(network: Network) -> None:
    model, data = network.whole(), separable(network)
    before = mean_loss(model, *data)
    train(model, data, pl.methods.dpsgd(clip=1.0))
    assert mean_loss(model, *data) < before - 0.2


def test_private_moments_are_part_of_the_run() -> None:
    """Features of very different sizes, of so many records that no seed's noise decides."""
    size = 10.0 ** torch.arange(-3.0, 1)[:, None, None]
    labels = torch.arange(2000) % 2
    signs = torch.tensor([-1.0, 1.0])[labels].view(-1, 1, 1, 1)
    x = size * (signs + 0.2 * torch.randn(2000, 4, 2, 2))
    moments = private_moments(x, noise_multiplier=5.0, bound=2.0, square_bound=2.0, seed=3)
    pair = moments.mean, moments.variance
    model = build("scattering-linear", classes=2, in_channels=4, size=2, normalise=pair)
    private = pl.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        (x, labels),
        loss=nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dpsgd(clip=1.0),
        budget=pl.Budget(epsilon=8, delta=1e-4, steps=5, expected_batch_size=500),
        before=[moments.release],
        seed=3,
    )
    private.fit(progress=False)
    assert 7.9 < private.epsilon() <= 8
    assert private.plan.before == (moments.release,)
    assert float((model(x).argmax(1) == labels).float().mean()) > 0.9


@pytest.mark.parametrize(
    ("normalise", "message"),
    [
        (0, "normalise is 0; give a number of groups"),
        (True, "normalise is True"),
        (10, r"81 channels cannot be divided into 10 groups.*such as 27"),
        ((torch.zeros(5), torch.ones(5)), "mean and variance have 5 channels.*have 81"),
        ((torch.zeros(81), torch.zeros(81)), "positive variances"),
        ((torch.zeros(81), torch.ones(80)), r"shape \(81,\) and the variance \(80,\)"),
    ],
)
def test_what_is_given_is_checked(normalise: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("scattering-linear", normalise=normalise)
