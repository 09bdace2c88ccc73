"""Methods whose records have random numbers of their own, and BatchNorm, against literal loops.

The raw numbers are the run's; buckets, companions, noise and statistics are made here.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from tests.methods.literal import (
    CHUNKS,
    CLIP,
    LOSS,
    Case,
    Reference,
    clipped,
    flat,
    images,
    network,
    train,
)

PUBLIC = images(50)[0][40:]


def zeta(model: nn.Module, seed: int) -> Tensor:
    """N(0, I), parameter by parameter, from a seed and the parameter's name."""
    parts = []
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
        parts.append(torch.empty_like(parameter).normal_(generator=generator))
    return flat(parts)


class PreClipNoise(Reference):
    """Paper 001, Eq. 11: clip(g_i + k zeta_i), fresh zeta_i ~ N(0, I) for every record and step."""

    scale = 1.5

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            seed = int(self.draws("pre-clipping", step, record).seeds())
            total += clipped(self.gradient(record) + self.scale * zeta(self.run.start, seed))
        return self.released(total, CLIP, step)


class BatchClipping(Reference):
    """Paper 003, Alg. 3, Eq. 15: the loss of the first row only, through torch's own BatchNorm."""

    companions, sensitivity = 3, 1.0

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            chosen = self.draws("companions", step, record).integers(len(PUBLIC), self.companions)
            rows = torch.cat([self.x[record : record + 1], PUBLIC[chosen[0]]])
            model = self.model().train()
            loss = LOSS(model(rows)[:1], self.y[record : record + 1]).sum()
            gradient = flat(torch.autograd.grad(loss, list(model.parameters())))
            total += self.bounded(gradient)
        return self.released(total, self.sensitivity, step)

    def bounded(self, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm()


class BatchClippingClipped(BatchClipping):
    sensitivity = CLIP

    def bounded(self, gradient: Tensor) -> Tensor:
        return clipped(gradient)


class GroupBatchNorm(Reference):
    """Paper 003, Fig. 8: exactly p records, drawn at random, go through torch's BatchNorm together.

    What is left over goes with the last group.
    """

    size = 2

    def update(self, step: int, batch: list[int]) -> Tensor:
        shuffled = sorted(batch, key=lambda one: int(self.draws("groups", step, one).seeds()))
        groups = [shuffled[at : at + self.size] for at in range(0, len(batch), self.size)]
        if len(groups) > 1 and len(groups[-1]) < self.size:
            last = groups.pop()
            groups[-1] += last
        total = self.zero()
        for records in groups:
            model = self.model().train()
            loss = LOSS(model(self.x[records]), self.y[records]).sum() / self.size
            total += clipped(flat(torch.autograd.grad(loss, list(model.parameters()))))
        return total / (self.expected / self.size)


def normed() -> dict[str, Any]:
    """BatchNorm with statistics from before, which must neither be used nor change."""
    layer = nn.BatchNorm2d(3)
    layer.running_mean = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    return {"model": network(layer)}


named = pl.methods
NORMED = [
    Case(named.batch_clipping(PUBLIC, BatchClipping.companions), BatchClipping, "", normed),
    Case(
        named.batch_clipping(PUBLIC, BatchClipping.companions, CLIP),
        BatchClippingClipped,
        "clipped",
        normed,
    ),
    Case(named.group_batchnorm(CLIP, GroupBatchNorm.size), GroupBatchNorm, "", normed),
]
CASES = [Case(named.pre_clip_noise(CLIP, PreClipNoise.scale), PreClipNoise), *NORMED]


@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_method_with_draws_is_its_papers_loop(case: Case, most: int | None) -> None:
    case.check(most)


@pytest.mark.parametrize("case", NORMED, ids=str)
def test_running_statistics_are_neither_used_nor_changed(case: Case) -> None:
    runs = []
    for shift in (0.0, 5.0):
        model = normed()["model"]
        model[1].running_mean.add_(shift)
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        runs.append(train(case.method, model))
        assert model.training
        assert "forward" not in vars(model[1])
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, before[name]), name
    for first, second in zip(runs[0].updates, runs[1].updates, strict=True):
        assert torch.equal(first, second)
