"""Noise before clipping: fresh for every record and step, the same however the batch is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import PreClipNoise
from tests.methods.literal import CLIP, EXPECTED, Recording, close, prepare, train


def sums(scale: float, **settings: Any) -> list[Tensor]:
    """Each step's sum of perturbed gradients at weights that stay, not clipped, without noise."""
    method = pl.methods.compose(evaluation=PreClipNoise(scale), clipping=Flat(1e9), noisy=False)
    private = prepare(method, **settings)
    private.optimizer.param_groups[0]["lr"] = 0.0
    for batch in private:
        private.step(batch)
    private.close()
    assert isinstance(private.optimizer, Recording)
    return [update * EXPECTED for update in private.optimizer.given]


def noise(**settings: Any) -> list[Tensor]:
    """The sum of the zeta_i of each step, times the scale of five."""
    return [a - b for a, b in zip(sums(5.0, **settings), sums(0.0, **settings), strict=True)]


def test_without_scale_it_is_the_plain_gradient() -> None:
    runs = [
        train(pl.methods.compose(evaluation=rules, clipping=Flat(CLIP), noisy=False))
        for rules in (PreClipNoise(0.0), ())
    ]
    close(runs[0].updates, runs[1].updates)


def test_it_is_gaussian_and_fresh() -> None:
    """The sum over a batch of n has variance n k^2; steps are independent of each other."""
    drawn = noise()
    sizes = [6, 6, 0, 6, 9]
    assert drawn[2].abs().max() == 0
    for total, size in zip(drawn, sizes, strict=True):
        if size:
            scaled = total / (5 * size**0.5)
            assert abs(float(scaled.mean())) < 4 / len(scaled) ** 0.5
            assert abs(float(scaled.std()) - 1) < 4 / (2 * len(scaled)) ** 0.5
    cosine = torch.nn.functional.cosine_similarity(drawn[0], drawn[1], dim=0)
    assert abs(float(cosine)) < 4 / len(drawn[0]) ** 0.5


def test_chunks_see_the_same_noise() -> None:
    for whole, cut in zip(noise(), noise(max_physical_batch=2), strict=True):
        close(cut, whole)


def test_it_earns_no_privacy() -> None:
    """methods.md, C: no credit."""
    (query,) = pl.methods.pre_clip_noise(CLIP, 100.0).queries(0.7)
    assert (query.name, query.noise_multiplier) == ("gradient", 0.7)


def test_a_negative_scale_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale is -1\.0; it must be a finite number, not neg"):
        PreClipNoise(-1.0)
