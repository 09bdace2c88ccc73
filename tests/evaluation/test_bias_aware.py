"""Bias-aware minimisation: same masks in both passes, zero gradients, schedules, the exact form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import Bam, BamExact, BatchClipping, Views
from tests.methods.literal import (
    CLIP,
    LOSS,
    Case,
    Reference,
    clipped,
    close,
    flat,
    network,
    train,
)
from tests.methods.test_references_evaluation import brightened
from tests.methods.test_references_random import PUBLIC, normed

RADIUS = 0.4
RULES = {"ascent": Bam, "exact": BamExact}


class OutOfSight:
    """Keeps what a model may not: the watch on its state does not look inside."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: list[Tensor] = []


class Remembered(nn.Dropout):
    """Dropout that keeps its masks."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.out_of_sight = OutOfSight()

    @property
    def masks(self) -> list[Tensor]:
        return self.out_of_sight.kept

    def forward(self, rows: Tensor) -> Tensor:
        mask = super().forward(torch.ones_like(rows))
        if torch.is_grad_enabled():  # the tests for isolation need no gradients
            self.masks.append(mask.detach())
        return rows * mask


def dropping() -> nn.Sequential:
    model = network()
    model.insert(4, Remembered(0.4))
    return model


class BamWithMasks(Reference):
    """Paper 000, Eq. 14 with dropout: a record's masks are the same where it climbs and after."""

    radius = RADIUS

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for place, record in enumerate(batch):
            uphill = self.dropped(step, place, record, self.theta)
            moved = self.theta + self.radius * uphill / uphill.norm()
            total += clipped(self.dropped(step, place, record, moved))
        return self.released(total, CLIP, step)

    def dropped(self, step: int, place: int, record: int, at: Tensor) -> Tensor:
        """The gradient with the record's row of the masks of the step."""
        model = self.model(at)
        inner = model[:4](self.x[record : record + 1]) * self.masks[step][place]
        loss = LOSS(model[5:](inner), self.y[record : record + 1]).sum()
        return flat(torch.autograd.grad(loss, list(model.parameters())))

    masks: dict[int, Tensor]


@pytest.mark.parametrize(
    "most", [None, 7], ids=["whole", "chunks"]
)  # a chunk of one is run twice over
def test_both_passes_see_the_same_dropout_masks(most: int | None) -> None:
    model = dropping()
    layer = model[4]
    assert isinstance(layer, Remembered)
    run = train(pl.methods.bam(CLIP, RADIUS), model, max_physical_batch=most)
    sizes = [len(batch) for batch in run.batches]
    per_chunk = [[min(most or n, n - at) for at in range(0, n, most or n or 1)] for n in sizes]
    wanted = [size for step in per_chunk for size in step for _ in range(2)]
    masks = layer.masks
    assert [len(mask) for mask in masks] == wanted
    for first, second in zip(masks[::2], masks[1::2], strict=True):
        assert torch.equal(first, second)
    reference = BamWithMasks(run)
    firsts = iter(masks[::2])
    reference.masks = {
        step: torch.cat([next(firsts) for _ in parts])
        for step, parts in enumerate(per_chunk)
        if parts
    }
    assert not torch.equal(reference.masks[0][0], reference.masks[0][1])
    assert not torch.equal(reference.masks[0][0], reference.masks[1][0])
    reference.check()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("most", [None, 3], ids=["whole", "chunks"])
def test_with_radius_zero_it_is_the_plain_gradient(
    rule: type, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, and masks that both runs share."""
    monkeypatch.setattr(pl.Private, "draws_key", lambda self, step: str(step))
    method = pl.methods.compose(evaluation=rule(0.0), clipping=Flat(CLIP), noisy=False)
    plain = pl.methods.clipped_only(CLIP)
    runs = []
    for one in (method, plain):
        runs.append(train(one, dropping(), max_physical_batch=most))
    close(runs[0].updates, runs[1].updates)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_record_without_gradient_stays_where_it_is(rule: type) -> None:
    """0 / 0 would make it not finite, or move it anywhere."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    x[3], y[3] = 0, 0
    squared = nn.MSELoss(reduction="none")
    method = pl.methods.compose(evaluation=rule(RADIUS), clipping=Flat(CLIP), noisy=False)
    runs = []
    for records in (list(range(8)), [0, 1, 2, 4, 5, 6, 7]):
        model = nn.Sequential(nn.Linear(3, 2, bias=False)).double()
        nn.init.ones_(model[0].weight)
        data = (x[records], y[records])
        runs.append(train(method, model, data, expected=len(records), loss=squared, steps=2))
    with_it, without = (run.updates[0] * len(run.batches[0]) for run in runs)
    assert with_it.abs().sum() > 0
    close(with_it, without)


def test_a_schedule_is_asked_for_every_step() -> None:
    asked: list[int] = []

    def radius(step: int) -> float:
        asked.append(step)
        return 0.1

    train(pl.methods.bam(CLIP, radius))
    assert asked == [0, 1, 3, 4]  # the third batch has no record to move


def test_the_ascent_form_approaches_the_exact_one() -> None:
    """Eq. 14 is Eq. 13 up to the radius' square."""
    gaps = []
    for radius in (1e-2, 1e-3):
        found = [
            train(pl.methods.compose(evaluation=rule(radius), clipping=Flat(50.0), noisy=False))
            for rule in (Bam, BamExact)
        ]
        gaps.append(float((found[0].updates[0] - found[1].updates[0]).norm()))
    assert 80 < gaps[0] / gaps[1] < 120


def test_the_exact_forms_limit_changes_nothing() -> None:
    runs = [
        train(
            pl.methods.compose(
                evaluation=BamExact(RADIUS, limit=limit), clipping=Flat(CLIP), noisy=False
            )
        )
        for limit in (None, 2)
    ]
    close(runs[0].updates, runs[1].updates)


class ExactWithCompanions(Reference):
    """Paper 000, Eq. 13, of paper 003's Eq. 15: through torch's own BatchNorm, twice."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            model = self.model()
            parameters = list(model.parameters())
            chosen = self.draws("companions", step, record).integers(len(PUBLIC), 2)
            rows = torch.cat([self.x[record : record + 1], PUBLIC[chosen[0]]])
            loss = LOSS(model(rows)[:1], self.y[record : record + 1]).sum()
            total += clipped(exact(loss, parameters))
        return self.released(total, CLIP, step)


class ExactOnViews(Reference):
    """Paper 000, Eq. 13, of the mean over the views of a record."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            model = self.model()
            drawn = self.draws("views", step, record).repeat(3).uniform().double()
            rows = torch.stack([self.x[record] * (0.5 + float(number)) for number in drawn])
            loss = LOSS(model(rows), self.y[record].repeat(3)).mean()
            total += clipped(exact(loss, list(model.parameters())))
        return self.released(total, CLIP, step)


def exact(loss: Tensor, parameters: list[Tensor]) -> Tensor:
    """The gradient of ``loss + radius |grad loss|``."""
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    norm = torch.stack([part.square().sum() for part in gradient]).sum().sqrt()
    return flat(torch.autograd.grad(loss + RADIUS * norm, parameters))


def with_exact(rule: Any) -> pl.methods.Method:
    return pl.methods.compose(evaluation=[rule, BamExact(RADIUS)], clipping=Flat(CLIP))


@pytest.mark.parametrize("most", [None, 3], ids=["whole", "chunks"])
@pytest.mark.parametrize(
    "case",
    [
        Case(with_exact(BatchClipping(PUBLIC, 2)), ExactWithCompanions, "", normed),
        Case(with_exact(Views(brightened, 3)), ExactOnViews),
    ],
    ids=str,
)
def test_the_exact_form_of_what_the_model_sees(case: Case, most: int | None) -> None:
    case.check(most)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("radius", [-0.1, float("nan"), "0.1"])
def test_a_bad_radius_is_refused(rule: type, radius: Any) -> None:
    with pytest.raises(ValueError, match="radius is"):
        rule(radius)
