"""Standardised vectors and weights, against their formulas channel by channel."""

import copy

import pytest
import torch
from torch import Tensor, nn

from plumbline.models.standardisation import (
    ScaledWeightStandardisation,
    WeightCentring,
    WeightStandardisation,
    parametrised,
    standardise,
)
from tests.gradients.harness import PRECISIONS, Precision, assert_matches_loop

CHANNELS, FAN_IN = 4, 3 * 3 * 3
PARAMETRISATIONS = {
    "standardised": lambda: WeightStandardisation(),
    "scaled": lambda: ScaledWeightStandardisation(CHANNELS),
    "centred": lambda: WeightCentring(),
}
EACH = pytest.mark.parametrize("name", PARAMETRISATIONS)


def layer(name: str) -> tuple[nn.Conv2d, Tensor]:
    """A convolution with the parametrisation, and the free weight it was given."""
    convolution = nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1).double()
    free = convolution.weight.detach().clone()
    return parametrised(convolution, PARAMETRISATIONS[name]().double()), free


def test_standardise() -> None:
    vectors = torch.randn(5, 3, 40, dtype=torch.float64) * 7 + 2
    found = standardise(vectors)
    for before, after in zip(vectors.view(-1, 40), found.view(-1, 40), strict=True):
        mean = before.sum() / 40
        deviation = ((before - mean).square().sum() / 39).sqrt()
        torch.testing.assert_close(after, (before - mean) / (deviation + 1e-6))


def test_equal_coordinates_give_zeros_with_finite_gradients() -> None:
    vectors = torch.full((2, 8), 3.0, requires_grad=True)
    found = standardise(vectors)
    assert torch.equal(found, torch.zeros(2, 8))
    found.sum().backward()
    assert vectors.grad is not None
    assert torch.isfinite(vectors.grad).all()


def test_weight_standardisation() -> None:
    found, free = layer("standardised")
    for own, weight in zip(free, found.weight, strict=True):
        expected = (own - own.mean()) / (own.std() + 1e-6) / FAN_IN**0.5
        torch.testing.assert_close(weight, expected)


def test_scaled_weight_standardisation() -> None:
    found, free = layer("scaled")
    gains = torch.tensor([1.0, 0.5, -2.0, 3.0], dtype=torch.float64)
    with torch.no_grad():
        found.parametrizations["weight"][0].gain.copy_(gains)  # type: ignore[index, union-attr]
    for own, weight, gain in zip(free, found.weight, gains, strict=True):
        variance = (own - own.mean()).square().mean()
        torch.testing.assert_close(weight, gain * (own - own.mean()) / (variance * FAN_IN).sqrt())


def test_scaled_weight_standardisation_of_tiny_weights() -> None:
    weight = 1e-4 * torch.randn(2, 3, 3, 3)
    found = ScaledWeightStandardisation(2)(weight)
    centred = weight - weight.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(found, centred / 1e-2)  # the root of the least that it divides by


def test_weight_centring() -> None:
    found, free = layer("centred")
    for own, weight in zip(free, found.weight, strict=True):
        torch.testing.assert_close(weight, own - own.sum() / FAN_IN)


@EACH
def test_the_free_weight_is_the_parameter(name: str) -> None:
    found, free = layer(name)
    assert isinstance(found, nn.Conv2d)
    names = dict(found.named_parameters())
    assert torch.equal(names["parametrizations.weight.original"], free)
    assert ("parametrizations.weight.0.gain" in names) == (name == "scaled")
    other = copy.deepcopy(found)
    nn.init.zeros_(other.parametrizations["weight"].original)  # type: ignore[index, union-attr]
    other.load_state_dict(found.state_dict())
    assert torch.equal(other.weight, found.weight)


@PRECISIONS
@EACH
def test_gradients_match_the_loop(name: str, precision: Precision, device: torch.device) -> None:
    convolution, _ = layer(name)
    assert_matches_loop(convolution.to(device), torch.randn(4, 3, 7, 7, device=device), **precision)
