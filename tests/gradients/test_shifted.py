"""Gradients shifted by one vector, against the shifted gradients themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plumbline.gradients import PerSampleGradients, capture
from plumbline.gradients.shifted import Shifted

RECORDS = 5


def captured(dtype: torch.dtype = torch.float64) -> PerSampleGradients:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
    x = torch.randn(RECORDS, 3).to(dtype)
    return capture(model, lambda net, x: net(x)[:, 0].square() + net(x)[:, 0], x)


def vector(own: PerSampleGradients, scale: float = 1.0) -> dict[str, Tensor]:
    return {name: scale * torch.randn_like(g[0]) for name, g in own.materialise().items()}


def built(own: PerSampleGradients, shift: dict[str, Tensor]) -> PerSampleGradients:
    moved = {name: g + shift[name] for name, g in own.materialise().items()}
    return PerSampleGradients.of(moved, own.losses)


def test_norms_and_sums_are_those_of_the_shifted_gradients() -> None:
    own = captured()
    shift = vector(own)
    shifted, expected = Shifted(own, shift), built(own, shift)
    assert shifted.names == own.names
    assert torch.allclose(shifted.norms(), expected.norms(), rtol=1e-12)
    some = own.names[1:3]
    assert torch.allclose(shifted.norms(some), expected.norms(some), rtol=1e-12)
    weights = torch.tensor([0.5, 0.0, -1.0, 2.0, 0.1]).double()
    by_name = {name: weights * place for place, name in enumerate(own.names)}
    for given in (None, weights, by_name):
        found, sums = shifted.sum(given), expected.sum(given)
        for name, value in sums.items():
            assert torch.allclose(found[name], value, rtol=1e-12, atol=1e-14)


def test_a_record_that_the_shift_cancels_keeps_its_digits() -> None:
    """In float32 the squares alone would leave nothing of it."""
    own = captured(torch.float32)
    small = vector(own, 1e-5)
    shift = {name: small[name] - g[2] for name, g in own.materialise().items()}
    found, expected = Shifted(own, shift).norms(), built(own, shift).norms()
    assert expected[2] < 1e-3
    assert torch.allclose(found, expected, rtol=1e-5)


def test_what_is_left_out_adds_nothing() -> None:
    own = captured()
    wild = {name: torch.full_like(g, float("nan")) for name, g in vector(own).items()}
    shifted = Shifted(own, wild)
    assert shifted.norms().isnan().all()
    assert all(not value.any() for value in shifted.sum(torch.zeros(RECORDS)).values())
