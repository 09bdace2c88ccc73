"""Scores of what was told: where they lie with the canary and without it."""

import numpy as np
import pytest
import torch

from plumbline.auditing import scores
from plumbline.auditing.watched import Answer, Told

DRAW = torch.Generator().manual_seed(0)
COUNT = 20_000


def noise(std: float) -> torch.Tensor:
    return std * torch.randn(2 * COUNT, generator=DRAW, dtype=torch.float64)


def told(*answers: Answer, inside: float = 1.0, outside: float = 1.0) -> Told:
    return Told(answers, noise(inside), noise(outside))


def test_answers_are_weighted_by_what_they_tell() -> None:
    one = told(Answer("count", 2.0, 1.0, noise(2.0)), Answer("gradient", 0.5, 0.4, noise(0.5)))
    always, never = scores.answers(one, np.ones(COUNT))
    # Of unit noise, the likelihood ratio's mean moves by the root of its own variance, squared.
    mu = one.moved
    assert mu == pytest.approx(np.hypot(0.5, 0.8))
    assert never.std() == pytest.approx(mu, rel=0.03)
    assert always.mean() - never.mean() == pytest.approx(mu**2, rel=0.05)


def test_a_canary_takes_part_where_it_was_drawn() -> None:
    one = told(Answer("gradient", 1.0, 100.0, noise(1.0)))
    drawn = (np.arange(COUNT) % 4 == 0).astype(float)
    inside, outside = scores.answers(one, drawn)
    assert np.array_equal(inside > 5000, drawn == 1)
    assert (outside < 5000).all()


def test_a_scale_that_shrinks_with_the_batch_is_seen() -> None:
    always, never = scores.scale(told(inside=0.75), np.ones(COUNT))
    assert always.min() > never.max()
    sometimes, _ = scores.scale(told(inside=0.75), (np.arange(COUNT) % 2).astype(float))
    assert (sometimes > never.max()).mean() == pytest.approx(0.5, abs=0.02)
    alike, same = scores.scale(told(), np.ones(COUNT))
    assert abs(alike.mean() - same.mean()) < 0.05


def test_noise_that_is_used_twice_cancels() -> None:
    first = Answer("gradient", 1.0, 1.0, noise(1.0))
    again = Answer("gradient", 1.0, 1.0, first.noise)
    here, there = np.ones(COUNT), np.zeros(COUNT)
    inside, outside = scores.difference(told(first), told(again), (here, there))
    assert np.allclose(inside, 1)
    assert not outside.any()
    fresh = Answer("gradient", 1.0, 1.0, noise(1.0))
    _, apart = scores.difference(told(first), told(fresh), (here, there))
    assert np.square(apart).mean() == pytest.approx(2, rel=0.05)
