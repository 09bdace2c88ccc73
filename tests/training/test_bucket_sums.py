"""A step's sums in buckets: which records share one, and when there are any, is public."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline.gradients import PerSampleGradients
from plumbline.gradients.summation import TOGETHER
from tests.training.small import budget, data, private, run


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor | None]:
    """The buckets that sums were asked for with."""
    found: list[Tensor | None] = []
    release = PerSampleGradients.to_release

    def to_release(self: PerSampleGradients, buckets: Tensor | None = None) -> Any:
        found.append(buckets)
        return release(self, buckets)

    monkeypatch.setattr(PerSampleGradients, "to_release", to_release)
    return found


def test_a_bucket_follows_from_the_records_number(seen: list[Tensor | None]) -> None:
    mine = private(dataset=data(4000), plan=budget(expected_batch_size=200, delta=1e-5))
    drawn = run(mine)
    width = math.ceil(TOGETHER / mine.plan.sampling_rate)
    assert len(seen) == len(drawn) == 4
    for indices, buckets in zip(drawn, seen, strict=True):
        assert buckets is not None
        assert torch.equal(buckets, indices // width)
        assert (buckets.diff() >= 0).all()


def test_a_step_in_chunks_has_none(seen: list[Tensor | None]) -> None:
    """Where chunks begin depends on how many records are drawn."""
    run(private(max_physical_batch=1000))
    assert seen == [None] * 4
