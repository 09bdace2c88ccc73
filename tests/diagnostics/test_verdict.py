"""The verdict on constructed cases whose cause is known."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import nn

from plumbline.clipping import Flat
from plumbline.diagnostics import (
    Evidence,
    Sample,
    Undefined,
    bias,
    error_parts,
    to_json,
    verdict,
)
from plumbline.gradients import PerSampleGradients
from tests.diagnostics.problems import loss_of


def evidence_of(
    gradients: list[list[float]], clip: float, noise: float = 0.0, **more: Any
) -> Evidence:
    """A sample whose records have exactly these gradients."""
    values = torch.tensor(gradients, dtype=torch.float64)
    held = PerSampleGradients.of({"w": values}, torch.ones(len(values), dtype=torch.float64))
    sample = Sample(held, Flat(clip), noise_multiplier=noise)
    return Evidence(
        **{
            "bias": bias(sample),
            "errors": error_parts(sample),
            "steps": 100,
            **more,
        }
    )


def test_equal_gradients_that_are_clipped_alike_only_get_shorter() -> None:
    found = verdict(evidence_of([[3.0, 4.0]] * 8, clip=1.0))
    assert found.cause == "clipping magnitude"
    assert found.scores["clipping magnitude"] == pytest.approx(0.8**2)
    assert found.scores["clipping direction"] == pytest.approx(0, abs=1e-12)
    assert "20% of the gradient's length" in str(found)
    assert "5 times as large" in str(found)
    assert "learning rate" in found.suggestions[0]


def test_a_shorter_gradient_costs_adam_nothing() -> None:
    found = verdict(evidence_of([[3.0, 4.0]] * 8, clip=1.0, optimizer="adam"))
    assert found.cause == "nothing"
    assert "clipping magnitude" not in found.scores
    assert "20% of the gradient's length" in str(found)
    assert "adam's steps do not depend on the length" in str(found)
    assert "times as large" not in str(found)


def test_one_long_gradient_among_short_ones_of_another_direction_turns_the_mean() -> None:
    # The mean is (10, 0.9) / 10, the clipped one (1, 0.9) / 10.
    found = verdict(evidence_of([[10.0, 0.0]] + [[0.0, 0.1]] * 9, clip=1.0))
    assert found.cause == "clipping direction"
    assert "No learning rate mends that" in str(found)
    assert any("global_adapt" in one for one in found.suggestions)


def test_the_method_in_use_is_not_suggested() -> None:
    found = verdict(evidence_of([[10.0, 0.0]] + [[0.0, 0.1]] * 9, clip=1.0, method="global_adapt"))
    assert not any("global_adapt" in one for one in found.suggestions)


def test_paper_001_example_1_goes_uphill() -> None:
    # At x = 0 the records -3, -3 and 9 have gradients 3, 3 and -9: the mean points to the optimum
    # at 1, the clipped mean away from it.
    found = verdict(evidence_of([[3.0], [3.0], [-9.0]], clip=1.0))
    assert found.cause == "clipping direction"
    assert "uphill" in str(found)


def test_noise_on_gradients_that_are_not_clipped() -> None:
    found = verdict(evidence_of([[0.1, 0.0]] * 8, clip=1.0, noise=50.0, steps=4))
    assert found.cause == "noise"
    assert found.scores["clipping magnitude"] == pytest.approx(0, abs=1e-12)
    expected = 2 * (50.0 / 8) ** 2 / 4 / 0.01
    assert found.scores["noise"] == pytest.approx(expected)
    assert any("batches" in one for one in found.suggestions)


def test_more_steps_average_noise_out() -> None:
    few = evidence_of([[0.1, 0.0]] * 8, clip=1.0, noise=1.0, steps=1)
    many = dataclasses.replace(few, steps=1_000_000)
    assert verdict(few).cause == "noise"
    assert verdict(many).cause == "nothing"
    assert "Neither clipping nor noise" in str(verdict(many))


def test_who_bears_it() -> None:
    base = evidence_of([[3.0, 4.0]] * 8, clip=1.0)
    uneven = dataclasses.replace(
        base,
        cost_by_group={"men": 11.0, "women": 3.0},
        direction_by_group={"men": 0.2, "women": 0.1},
    )
    assert "Privacy costs men 11.0 points of accuracy and women 3.0." in str(verdict(uneven))
    assert "direction error is largest for men" in str(verdict(uneven))
    even = dataclasses.replace(base, cost_by_group={"men": 3.2, "women": 3.0})
    assert "about the same" in str(verdict(even))


def test_without_evidence_it_says_so() -> None:
    found = verdict(Evidence())
    assert found.cause == "nothing"
    assert "not enough evidence" in str(found)


@pytest.mark.parametrize("records", [0, 4], ids=["no records", "zero gradients"])
def test_undefined_measurements_are_left_out(records: int) -> None:
    found = (
        verdict(evidence_of([[0.0, 0.0]] * records or torch.zeros(0, 2).tolist(), clip=1.0))
        if records
        else None
    )
    if found is None:
        nothing = Undefined("the batch has no records")
        empty = bias(
            Sample(PerSampleGradients.of({"w": torch.zeros(0, 2)}, torch.zeros(0)), Flat(1.0))
        )
        assert empty.norm == nothing
        found = verdict(Evidence(bias=empty))
    assert found.scores == {}
    json.dumps(to_json(found), allow_nan=False)


def test_every_word_is_marked_as_not_covered() -> None:
    assert "not covered by epsilon" in str(verdict(evidence_of([[3.0, 4.0]] * 8, clip=1.0)))


def test_a_real_network() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    sample = Sample.take(model, loss_of, (x, y), Flat(0.05))
    found = verdict(Evidence(bias=bias(sample), errors=error_parts(sample), steps=100))
    assert found.cause in ("clipping magnitude", "clipping direction")
    json.dumps(to_json(found), allow_nan=False)
