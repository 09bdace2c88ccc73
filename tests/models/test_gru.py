"""The GRU of paper 003: torch's own without the flags, and what the flags change."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plumbline.models import build
from plumbline.models.gru import GRU
from tests.gradients.harness import assert_matches_loop

FLAGS = {"normalise_input": "from_input", "normalise_hidden": "from_hidden"}


def network(**options: Any) -> GRU:
    model = build("imdb-gru", **{"features": 5, "hidden": 4, "classes": 3, **options}).double()
    assert isinstance(model, GRU)
    return model


def words(records: int = 3, length: int = 6) -> Tensor:
    return torch.randn(records, length, 5, dtype=torch.float64)


def test_without_normalisation_it_is_torchs_gru() -> None:
    model = network(normalised=False)
    reference = nn.GRU(5, 4, batch_first=True).double()
    with torch.no_grad():
        reference.weight_ih_l0.copy_(model.from_input.weight)
        reference.bias_ih_l0.copy_(model.from_input.bias)
        reference.weight_hh_l0.copy_(model.from_hidden.weight)
        reference.bias_hh_l0.copy_(model.from_hidden.bias)
    x = words()
    _, last = reference(x)
    torch.testing.assert_close(model(x), model.head(last[0]))


def test_normalised_gates_by_hand() -> None:
    model = network()
    x = words(1)

    def standardised(vector: Tensor) -> Tensor:
        return (vector - vector.mean()) / (vector.std() + 1e-6)

    h = torch.zeros(4, dtype=torch.float64)
    for word in x[0]:
        r_i, z_i, n_i = standardised(model.from_input(word)).split(4)
        r_h, z_h, n_h = standardised(model.from_hidden(h)).split(4)
        z = torch.sigmoid(z_i + z_h)
        h = (1 - z) * torch.tanh(n_i + torch.sigmoid(r_i + r_h) * n_h) + z * h
    torch.testing.assert_close(model(x)[0], model.head(h))


@pytest.mark.parametrize("flag", FLAGS)
def test_each_flag_makes_its_gates_free_of_scale(flag: str) -> None:
    x = words()
    for on, alike in ((True, True), (False, False)):
        model = network(normalised=False, **{flag: on})
        before = model(x)
        layer = getattr(model, FLAGS[flag])
        with torch.no_grad():
            layer.weight.mul_(3)
            layer.bias.mul_(3)
        # The epsilon, 1e-6 of a deviation of about one, is all that a scale changes.
        assert torch.allclose(model(x), before, rtol=0, atol=1e-5) == alike


def test_the_flags_default_to_the_papers_network() -> None:
    for normalised in (True, False):
        model = network(normalised=normalised)
        assert (model.normalise_input, model.normalise_hidden) == (normalised, normalised)
    model = network(normalise_hidden=False)
    assert (model.normalise_input, model.normalise_hidden) == (True, False)


def test_gates_of_equal_coordinates() -> None:
    model = network()
    with torch.no_grad():
        model.from_hidden.bias.zero_()  # and the state is zero at first
        model.from_input.bias.zero_()
    logits = model(torch.zeros(2, 3, 5, dtype=torch.float64))  # words without a vector
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


# As many records as words, as hidden units, as gates, and one: nothing is taken for the batch.
@pytest.mark.parametrize("records", [6, 4, 12, 1])
def test_gradients_match_the_loop(records: int, device: torch.device) -> None:
    assert_matches_loop(network().to(device), words(records).to(device))


@pytest.mark.parametrize("flag", FLAGS)
def test_gradients_with_one_flag_match_the_loop(flag: str, device: torch.device) -> None:
    model = network(normalised=False, **{flag: True}).to(device)
    assert_matches_loop(model, words().to(device))
