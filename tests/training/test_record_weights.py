"""Weights of records: after clipping, at most one, and refused where they mean nothing."""

from typing import Any

import pytest
import torch

import plumbline as pl
from tests.training.small import RECORDS, budget, data, gradient_of, network, private, weights

CLIP = 0.5


def released(**more: Any) -> torch.Tensor:
    """How far one step without noise moves the weights, for a batch of all records."""
    model = network()
    before = weights(model)
    plan = budget(noise_multiplier=0.0, steps=1, expected_batch_size=RECORDS)
    made = private(model, plan=plan, lr=1.0, **more)
    for batch in made:
        made.step(batch)
    made.close()
    return (before - weights(model)) * RECORDS


@pytest.mark.parametrize("method", ["dpsgd", "global_adapt", "per_layer", "automatic"])
def test_ones_change_nothing_and_zeros_leave_nothing(method: str) -> None:
    make = pl.methods.find(method).make
    plain = released(method=make())
    assert torch.equal(released(method=make(), record_weights=torch.ones(RECORDS)), plain)
    assert not released(method=make(), record_weights=torch.zeros(RECORDS)).any()


def test_a_weight_acts_on_the_clipped_gradient() -> None:
    factors = torch.linspace(0, 1, RECORDS, dtype=torch.float64)
    x, y = data()
    expected = torch.zeros_like(weights(network()))
    for place in range(RECORDS):
        gradient = gradient_of(network(), x[place : place + 1], y[place : place + 1])
        clipped = gradient * min(1.0, CLIP / float(gradient.norm()))
        expected += float(factors[place]) * clipped
    found = released(method=pl.methods.dpsgd(clip=CLIP), record_weights=factors)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_one_record_never_moves_the_sum_by_more_than_the_bound() -> None:
    clip = 0.01  # far below every norm
    factors = torch.full((RECORDS,), 0.7, dtype=torch.float64)
    for place in range(5):
        only = torch.zeros(RECORDS, dtype=torch.float64)
        only[place] = factors[place]
        moved = released(method=pl.methods.dpsgd(clip=clip), record_weights=only)
        assert float(moved.norm()) == pytest.approx(0.7 * clip, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.full((RECORDS,), 1.01), "outside 0 to 1"),
        (torch.full((RECORDS,), -0.1), "outside 0 to 1"),
        (torch.full((RECORDS,), 1 / RECORDS), "depend on all the others"),
        (torch.full((RECORDS,), float("nan")), "outside 0 to 1"),
        (torch.ones(3), "one for each"),
    ],
)
def test_other_weights_are_refused(given: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        private(record_weights=given)


def test_pooled_units_and_steps_of_ones_own_are_refused() -> None:
    ones = torch.ones(RECORDS)
    with pytest.raises(ValueError, match="clipped together"):
        private(record_weights=ones, user_ids=torch.arange(RECORDS) // 2)
    fair = pl.methods.find("fairlens").make(groups=(0, 1))
    with pytest.raises(ValueError, match="a step of its own"):
        private(record_weights=ones, method=fair, sensitive_features=torch.arange(RECORDS) % 2)


def test_the_statement_names_them() -> None:
    made = private(record_weights=torch.ones(RECORDS))
    assert "record_weights" in " ".join(str(made.statement()).split())
    made.close()
