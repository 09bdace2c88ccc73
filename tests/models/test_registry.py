"""Every network by name: its size, its output, and that it keeps records apart."""

import pytest
import torch

from plumbline.gradients import capture
from plumbline.gradients.errors import RecordsMixError
from plumbline.models import MODELS, accepts, build
from plumbline.registry import UnknownPart, WrongOptions
from tests.gradients.harness import (
    assert_matches_loop,
    assert_unmoved_by_others,
    output_losses,
)
from tests.models.networks import BATCH_NORM, NETWORKS, Network, each

HEAVY = [network for network in NETWORKS if network.heavy]


def test_every_network_is_in_the_table() -> None:
    known = {network.name for network in [*NETWORKS, BATCH_NORM]}
    files = {MODELS[name].__module__ for name in known}
    assert {name for name, builder in MODELS.items() if builder.__module__ in files} == known


@each([*NETWORKS, BATCH_NORM])
def test_number_of_parameters(network: Network) -> None:
    parameters = network.whole().parameters()
    assert sum(p.numel() for p in parameters if p.requires_grad) == network.count


@each([*NETWORKS, BATCH_NORM])
def test_shapes(network: Network) -> None:
    with torch.no_grad():
        assert network.whole()(torch.randn(2, *network.shape)).shape == (2, network.classes)
        assert network.reduced()(network.records(3)).shape == (3, network.classes)


@each([*NETWORKS, BATCH_NORM])
def test_another_number_of_classes(network: Network) -> None:
    model = build(network.name, **{**network.options, **network.small, "classes": 7})
    with torch.no_grad():
        assert model(network.records(2)).shape == (2, 7)


@each([network for network in NETWORKS if len(network.shape) == 3])
def test_another_number_of_channels(network: Network) -> None:
    model = build(network.name, in_channels=5, **network.options, **network.small)
    records = network.records(2)[:, :1].expand(-1, 5, -1, -1)
    with torch.no_grad():
        assert model(records).shape == (2, network.classes)


@each(NETWORKS)
def test_records_do_not_mix(network: Network, device: torch.device) -> None:
    assert_unmoved_by_others(network.reduced().to(device), network.records(3).to(device))


def test_batch_norm_is_refused(device: torch.device) -> None:
    model = BATCH_NORM.reduced().to(device)
    with pytest.raises(RecordsMixError, match=r"'stem\.1' \(BatchNorm2d\).*suggest_fixes"):
        capture(model, output_losses, BATCH_NORM.records(3).to(device))


# Evaluation mode, for the loop draws other dropout masks than the batch.
@each(NETWORKS, long=True)
def test_gradients_match_the_loop(network: Network, device: torch.device) -> None:
    model, records = network.reduced().to(device).eval(), network.records(2).to(device)
    assert_matches_loop(model, records, perturbed=not network.heavy)


@pytest.mark.slow
@each(HEAVY)
def test_perturbed_gradients_match_the_loop(network: Network, device: torch.device) -> None:
    assert_matches_loop(network.reduced().to(device).eval(), network.records(3).to(device))


@pytest.mark.slow
@each(NETWORKS)
def test_gradients_at_the_papers_size(network: Network, device: torch.device) -> None:
    records = torch.randn(2, *network.shape, device=device)
    assert_matches_loop(network.whole().to(device).eval(), records)


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(UnknownPart, match=r"no network 'resnet-21'\. Did you mean 'resnet-\d\d'"):
        build("resnet-21")
    with pytest.raises(WrongOptions, match=r"'selu-cnn'.*'width'.*classes, in_channels, size"):
        build("selu-cnn", width=3)
    with pytest.raises(WrongOptions, match="relu"):
        build("resnet-20", relu=True)


def test_names_are_the_same_with_either_dash() -> None:
    assert type(build("adult_mlp")) is type(build("adult-mlp"))
    assert accepts("adult_mlp", "hidden")
    assert not accepts("adult_mlp", "width")
