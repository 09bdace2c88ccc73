"""Sharpness-aware rules: one norm for all parameters, nothing left behind, what is remembered."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import plumbline as pl
from plumbline.clipping import Flat, PerGroup
from plumbline.evaluation import (
    DpSam,
    DpSat,
    DpSatMomentum,
    GradientNormPenalty,
    OuterMomentum,
    RecordMomentum,
)
from plumbline.evaluation.sharpness import scaled_to
from tests.evaluation.test_bias_aware import dropping, remembered
from tests.methods.literal import (
    CHUNKS,
    CLIP,
    RATE,
    SIGMA,
    Case,
    Reference,
    clipped,
    close,
    flat,
    images,
    network,
    prepare,
    train,
)
from tests.methods.test_references_evaluation import FEW, full_batches

RADIUS = 0.4


def test_a_direction_is_scaled_with_one_norm_over_all_parameters() -> None:
    direction = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    scaled = scaled_to(direction, 10.0)
    close(scaled, {"a": torch.tensor([6.0, 0.0]), "b": torch.tensor([[8.0]])})


def test_no_direction_moves_nothing() -> None:
    assert scaled_to({}, 1.0) == {}
    assert scaled_to({"a": torch.zeros(3)}, 1.0)["a"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("rule", [DpSam, DpSat, DpSatMomentum, GradientNormPenalty])
@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
def test_the_weights_are_restored_exactly(rule: type, most: int | None) -> None:
    """With a learning rate of zero nothing moves, not by a rounding."""
    model = network()
    before = flat(model.parameters()).clone()
    method = pl.methods.compose(evaluation=rule(), clipping=Flat(CLIP))
    private = prepare(method, model, max_physical_batch=most)
    private.optimizer.param_groups[0]["lr"] = 0.0
    for batch in private:
        private.step(batch)
        assert torch.equal(flat(model.parameters()), before)
        assert all(p.grad is None for p in model.parameters())
    private.close()


def test_as_released_leaves_moves_behind() -> None:
    """methods.md, C: K - 1 of them, each rho long, which is why it is never the default."""
    model = network()
    private = prepare(
        pl.methods.dp_sat(CLIP, RADIUS, as_released=True), model, max_physical_batch=2
    )
    private.optimizer.param_groups[0]["lr"] = 0.0
    for batch in private:
        before = flat(model.parameters()).clone()
        private.step(batch)
        moved = flat(model.parameters()) - before
        chunks = math.ceil(len(batch) / 2) if batch.step else 0  # nothing to climb at first
        assert float(moved.norm()) == pytest.approx(max(0, chunks - 1) * RADIUS, abs=1e-12)
    private.close()
    assert private.epsilon() == math.inf
    assert "tells the realised batch size without noise" in " ".join(private.statement().split())
    assert pl.methods.dp_sat(CLIP).unbounded_reason is None


def test_dp_sam_costs_two_questions() -> None:
    """methods.md, A3: sigma / sqrt 2, not (2 epsilon, 2 delta)."""
    release = prepare(pl.methods.dp_sam(CLIP)).plan.release
    assert [query.name for query in release.queries] == ["ascent gradient", "gradient"]
    assert release.noise_multiplier == pytest.approx(SIGMA / math.sqrt(2))
    assert prepare(pl.methods.dp_sat(CLIP)).plan.release.noise_multiplier == SIGMA


def test_dp_sat_begins_as_dp_sgd() -> None:
    """g_0 = 0 (002, Alg. 1); without noise, which is keyed by the run, the two are the same."""
    sat = pl.methods.compose(evaluation=DpSat(RADIUS), clipping=Flat(CLIP), noisy=False)
    found, plain = train(sat), train(pl.methods.clipped_only(CLIP))
    assert torch.equal(found.updates[0], plain.updates[0])
    assert not torch.equal(found.updates[1], plain.updates[1])


class SatBeforeMomentum(Reference):
    """methods.md, C: along the released gradient before any momentum is made of it."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.previous, self.momentum = self.zero(), self.zero()

    def update(self, step: int, batch: list[int]) -> Tensor:
        moved = self.theta + RADIUS * self.previous / (self.previous.norm() + 1e-16)
        total = self.zero()
        for record in batch:
            total += clipped(self.gradient(record, moved))
        self.previous = self.released(total, CLIP, step)
        self.momentum = 0.8 * self.momentum + self.previous
        return self.momentum

    def state(self) -> dict[str, Any]:
        return {"previous": self.previous, "momentum": self.momentum}


class SamOfMomenta(Reference):
    """DP-SAM on the records' momenta: the first pass only asks, the second is remembered."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.momenta: list[Tensor] | None = None

    def update(self, step: int, batch: list[int]) -> Tensor:
        first = sum((clipped(m) for m in self.moved_on(batch, self.theta)), self.zero())
        uphill = self.released(first, CLIP, step, 0)
        momenta = self.moved_on(batch, self.theta + RADIUS * uphill / uphill.norm())
        self.momenta = momenta
        return self.released(sum((clipped(m) for m in momenta), self.zero()), CLIP, step)

    def moved_on(self, batch: list[int], at: Tensor) -> list[Tensor]:
        fresh = [self.gradient(record, at) for record in batch]
        if self.momenta is None:
            return fresh
        return [0.3 * g + 0.7 * m for g, m in zip(fresh, self.momenta, strict=True)]

    def state(self) -> dict[str, Any]:
        assert self.momenta is not None
        sizes = [p.numel() for p in self.run.start.parameters()]
        by_parameter = zip(*(momentum.split(sizes) for momentum in self.momenta), strict=True)
        return {"momenta": torch.cat([torch.cat(parts) for parts in by_parameter])}


def both(*rules: Any) -> pl.methods.Method:
    return pl.methods.compose(evaluation=rules, clipping=Flat(CLIP))


@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize(
    "case",
    [
        Case(both(OuterMomentum(0.8), DpSat(RADIUS)), SatBeforeMomentum),
        Case(both(RecordMomentum(0.3), DpSam(RADIUS)), SamOfMomenta, "", full_batches),
    ],
    ids=str,
)
def test_beside_a_momentum(case: Case, most: int | None) -> None:
    case.check(most)


def test_the_optimizers_own_momentum_is_not_what_is_climbed() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    private = pl.make_private(
        model,
        optimizer,
        images(FEW),
        loss=torch.nn.CrossEntropyLoss(reduction="none"),
        method=pl.methods.dp_sat(CLIP, RADIUS),
        budget=pl.Budget(noise_multiplier=SIGMA, delta=1e-3, steps=3, expected_batch_size=FEW),
        seed=1,
    )
    before = flat(model.parameters()).clone()
    released = []
    for batch in private:
        private.step(batch)
        released.append(flat(private.method.evaluation[0].previous))
    private.close()
    velocity = sum(0.9 ** (2 - step) * g for step, g in enumerate(released))
    close(flat([optimizer.state[p]["momentum_buffer"] for p in model.parameters()]), velocity)
    assert not torch.equal(flat(model.parameters()), before)


def test_what_is_remembered_is_not_the_optimizers_to_change() -> None:
    class Careless(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for parameter in self.param_groups[0]["params"]:
                parameter.grad.zero_()

    model = network()
    private = pl.make_private(
        model,
        Careless(model.parameters(), lr=RATE),
        images(FEW),
        loss=torch.nn.CrossEntropyLoss(reduction="none"),
        method=both(DpSat(RADIUS), OuterMomentum()),
        budget=pl.Budget(noise_multiplier=SIGMA, delta=1e-3, steps=1, expected_batch_size=FEW),
    )
    for batch in private:
        private.step(batch)
    private.close()
    sat, outer = private.method.evaluation
    assert flat(sat.previous).norm() > 0
    close(flat(sat.previous), flat(outer.momentum))


def test_a_rule_that_asks_beside_a_clipping_that_counts() -> None:
    """DP-SAM with DPSGD-F: three questions, the ascent clipped by the bounds of the step before."""
    method = pl.methods.compose(evaluation=DpSam(RADIUS), clipping=PerGroup(CLIP, (0, 1)))
    settings: dict[str, Any] = {"sensitive_features": [r % 2 for r in range(30)]}
    runs = [train(method, max_physical_batch=most, **settings) for most in CHUNKS.values()]
    close(runs[0].updates, runs[1].updates)
    names = [query.name for query in runs[0].private.plan.release.queries]
    assert names == ["ascent gradient", "group counts", "gradient"]


@pytest.mark.parametrize(
    "method",
    [
        both(DpSam(RADIUS)),
        both(GradientNormPenalty(RADIUS, limit=7)),  # no chunk of one: that is run twice over
        pl.methods.fairlens(CLIP),
    ],
    ids=["DP-SAM", "gradient norm penalty", "FairLens"],
)
def test_all_passes_of_a_step_see_the_same_dropout_masks(
    method: pl.methods.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is differentiated twice, or climbed, must be the loss whose gradient is then taken."""
    drawn = remembered(monkeypatch)
    run = train(method, dropping(), sensitive_features=[r % 2 for r in range(30)])
    masks = torch.cat(drawn)
    count = sum(len(batch) for batch in run.batches)
    assert len(masks) > count
    assert len(masks.unique(dim=0)) == count  # one for each record and step


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DpSam(-1.0), "radius is -1.0; it must be a finite number, not negative"),
        (lambda: DpSat(math.inf), "radius is inf"),
        (lambda: DpSatMomentum(0.1, decay=1.0), "decay is 1.0; it must be at least 0 and below 1"),
        (lambda: GradientNormPenalty(-0.1), "penalty is -0.1"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
