"""Every rule of evaluation by name against a literal loop: where a record's gradient is taken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import plumbline as pl
from plumbline.clipping import Flat
from plumbline.evaluation import Bam, Views
from tests.methods.literal import CHUNKS, CLIP, LOSS, Case, Reference, Run, clipped, flat, images

RADIUS = 0.4
FEW = 7  # records, for full batches


class DpSam(Reference):
    """Paper 002, section 4.1: uphill along a first noisy gradient of the batch, then a second."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        first = self.zero()
        for record in batch:
            first += clipped(self.gradient(record))
        uphill = self.released(first, CLIP, step, 0)
        moved = self.theta + RADIUS * uphill / uphill.norm()
        second = self.zero()
        for record in batch:
            second += clipped(self.gradient(record, moved))
        return self.released(second, CLIP, step)


class DpSat(Reference):
    """Paper 002, Alg. 1 and Eq. 10: uphill along the previous released gradient, zero at first."""

    radius = RADIUS

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.previous = self.zero()

    def update(self, step: int, batch: list[int]) -> Tensor:
        moved = self.theta + self.radius * self.previous / (self.previous.norm() + 1e-16)
        total = self.zero()
        for record in batch:
            total += clipped(self.gradient(record, moved))
        self.previous = self.released(total, CLIP, step)
        return self.previous

    def state(self) -> dict[str, Any]:
        return {"previous": self.previous}


class DpSatAsReleased(DpSat):
    """methods.md, C: the authors' code moves once more for every chunk, and takes one move back."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        most = self.run.private.max_physical_batch or max(1, len(batch))
        move = self.radius * self.previous / (self.previous.norm() + 1e-16)
        total, chunks = self.zero(), math.ceil(len(batch) / most)
        for chunk in range(chunks):
            self.theta = self.theta + move
            for record in batch[chunk * most : (chunk + 1) * most]:
                total += clipped(self.gradient(record))
        if chunks:
            self.theta = self.theta - move
        self.previous = self.released(total, CLIP, step)
        return self.previous


class DpSatMomentum(Reference):
    """Paper 002, Eq. 14 and 15: along gamma g_{t-1} + gamma^2 g_{t-2} + ... over all of them."""

    decay = 0.7

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.past: list[Tensor] = []

    def update(self, step: int, batch: list[int]) -> Tensor:
        direction = self.zero()
        for tau in range(1, step + 1):
            direction += self.decay**tau * self.past[step - tau]
        moved = self.theta + RADIUS * direction / (direction.norm() + 1e-16)
        total = self.zero()
        for record in batch:
            total += clipped(self.gradient(record, moved))
        self.past.append(self.released(total, CLIP, step))
        return self.past[-1]

    def state(self) -> dict[str, Any]:
        # Eq. 13's velocity, of which Eq. 14 is the next step's multiple.
        powers = range(len(self.past))
        return {"previous": sum(self.decay**p * self.past[-1 - p] for p in powers)}


class BamLoop(Reference):
    """Paper 000, Eq. 14: each record at its own copy of the weights, moved up its own gradient."""

    def radius(self, step: int) -> float:
        return RADIUS

    def seen(self, step: int, record: int) -> tuple[Tensor, Tensor]:
        """What the model sees of a record: itself."""
        return self.x[record : record + 1], self.y[record : record + 1]

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            seen = self.seen(step, record)
            uphill = self.slope(*seen)
            moved = self.theta + self.radius(step) * uphill / uphill.norm()
            total += clipped(self.slope(*seen, moved))
        return self.released(total, CLIP, step)


class BamScheduled(BamLoop):
    """lambda(t) of Alg. 2."""

    def radius(self, step: int) -> float:
        return 0.2 * (step + 1)


def brightened(rows: Tensor, draws: Any) -> Tensor:
    """A view: the image times a number of its own."""
    return rows * (0.5 + draws.uniform()).to(rows)[:, None, None, None]


class BamOnViews(BamLoop):
    """methods.md, C: up the mean gradient of the views, and both passes see the same views."""

    views = 3

    def seen(self, step: int, record: int) -> tuple[Tensor, Tensor]:
        drawn = self.draws("views", step, record).repeat(self.views).uniform().double()
        rows = [self.x[record] * (0.5 + float(number)) for number in drawn]
        return torch.stack(rows), self.y[record].repeat(self.views)


class BamExact(Reference):
    """Paper 000, Eq. 13: g_i + lambda H_i g_i / |g_i|, by differentiating |g_i| itself."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            model = self.model()
            parameters = list(model.parameters())
            loss = LOSS(model(self.x[record : record + 1]), self.y[record : record + 1]).sum()
            gradient = torch.autograd.grad(loss, parameters, create_graph=True)
            norm = torch.stack([part.square().sum() for part in gradient]).sum().sqrt()
            penalty = flat(torch.autograd.grad(norm, parameters))
            total += clipped(flat(gradient) + RADIUS * penalty)
        return self.released(total, CLIP, step)


class InnerOuter(Reference):
    """Paper 003, Alg. 2, Eq. 13 and 14: K0 + 1 iterates, and an outer momentum of decay beta."""

    length, inner, outer, clip = 2, 0.3, 0.6, 7.0

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.iterates: list[Tensor] = []
        self.momentum = self.zero()

    def update(self, step: int, batch: list[int]) -> Tensor:
        self.iterates.append(self.theta.clone())
        total = self.zero()
        for record in batch:
            momentum = self.zero()
            for past in range(min(self.length, step) + 1):
                momentum += self.inner**past * self.gradient(record, self.iterates[step - past])
            total += self.bounded(momentum)
        self.momentum = self.outer * self.momentum + self.released(total, self.sensitivity, step)
        return self.momentum

    @property
    def sensitivity(self) -> float:
        return self.clip

    def bounded(self, momentum: Tensor) -> Tensor:
        return clipped(momentum, self.clip)

    def state(self) -> dict[str, Any]:
        latest = self.iterates[::-1][: self.length]
        return {"iterates": latest, "momentum": self.momentum}


class InnerOuterNormalised(InnerOuter):
    """As Alg. 2, line 6 prints it: normalised."""

    clip = 1.0

    def bounded(self, momentum: Tensor) -> Tensor:
        return momentum / momentum.norm()


class DpGdMomentum(Reference):
    """Paper 003, Alg. 1: a momentum of every record, from its first gradient on, normalised."""

    rate, sensitivity = 0.3, 1.0

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.momenta = [self.gradient(record) for record in range(FEW)]

    def update(self, step: int, batch: list[int]) -> Tensor:
        assert batch == list(range(FEW))
        total = self.zero()
        for record in batch:
            if step:  # line 7 of the step before, at the weights it led to
                fresh = self.gradient(record)
                self.momenta[record] = self.rate * fresh + (1 - self.rate) * self.momenta[record]
            total += self.bounded(self.momenta[record])
        return self.released(total, self.sensitivity, step)

    def bounded(self, momentum: Tensor) -> Tensor:
        return momentum / momentum.norm()

    def state(self) -> dict[str, Any]:
        sizes = [p.numel() for p in self.run.start.parameters()]
        by_parameter = zip(*(momentum.split(sizes) for momentum in self.momenta), strict=True)
        return {"momenta": torch.cat([torch.cat(parts) for parts in by_parameter])}


class DpGdMomentumClipped(DpGdMomentum):
    sensitivity = CLIP

    def bounded(self, momentum: Tensor) -> Tensor:
        return clipped(momentum)


class SelfAugmented(Reference):
    """De et al. 2022 and paper 003, section 6: the mean over K shifted and flipped views, clipped.

    A shift by up to 4 pixels is a window into the image padded by reflection.
    """

    views = 3

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            draws = self.draws("views", step, record).repeat(self.views)
            shifts, chances = draws.integers(9, 2).tolist(), draws.uniform().tolist()
            padded = torch.nn.functional.pad(self.x[record], (4, 4, 4, 4), mode="reflect")
            mean = self.zero()
            for (down, right), chance in zip(shifts, chances, strict=True):
                view = padded[:, down : down + 6, right : right + 6]
                view = view.flip(2) if chance < 0.5 else view
                mean += self.slope(view[None], self.y[record : record + 1]) / self.views
            total += clipped(mean)
        return self.released(total, CLIP, step)


def full_batches() -> dict[str, Any]:
    return {"data": images(FEW), "expected": FEW}


named = pl.methods
momenta = dict(
    length=InnerOuter.length,
    inner=InnerOuter.inner,
    outer=InnerOuter.outer,
)
CASES = [
    Case(named.dp_sam(CLIP, RADIUS), DpSam),
    Case(named.dp_sat(CLIP, RADIUS), DpSat),
    Case(named.dp_sat(CLIP, RADIUS, as_released=True), DpSatAsReleased, "as released"),
    Case(named.dp_sat_momentum(CLIP, RADIUS, DpSatMomentum.decay), DpSatMomentum),
    Case(named.bam(CLIP, RADIUS), BamLoop),
    Case(named.bam(CLIP, lambda step: 0.2 * (step + 1)), BamScheduled, "scheduled"),
    Case(
        named.compose(
            evaluation=[Bam(RADIUS), Views(brightened, BamOnViews.views)],
            clipping=Flat(CLIP),
            name="bam",
        ),
        BamOnViews,
        "views",
    ),
    Case(named.bam_exact(CLIP, RADIUS), BamExact),
    Case(named.inner_outer(InnerOuter.clip, **momenta), InnerOuter),
    Case(named.inner_outer(None, **momenta), InnerOuterNormalised, "normalised"),
    Case(named.dp_gd_momentum(DpGdMomentum.rate), DpGdMomentum, "", full_batches),
    Case(
        named.dp_gd_momentum(DpGdMomentum.rate, CLIP), DpGdMomentumClipped, "clipped", full_batches
    ),
    Case(named.self_augmented(CLIP, SelfAugmented.views), SelfAugmented),
]


@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_is_its_papers_loop(case: Case, most: int | None) -> None:
    case.check(most)
