"""No method, no clipping and no combination moves what it asks by more than it declares."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline import methods
from plumbline.auditing.contract import SLACK, Contract, check_contract
from plumbline.auditing.neighbours import KINDS, TOKENS, WIDTH, Neighbourhood, all_kinds
from plumbline.clipping import (
    CLIPPINGS,
    Averaged,
    Clipping,
    Flat,
    Global,
    GlobalAdapt,
    GroupBatchNorm,
    PerGroup,
    PerLayer,
    QuantileAdaptive,
    Unclipped,
)
from plumbline.clipping.base import Gradients
from plumbline.clipping.flat import flat_factors
from plumbline.evaluation import (
    EVALUATIONS,
    Bam,
    BatchClipping,
    Chunk,
    DpSam,
    DpSat,
    DpSatMomentum,
    Evaluation,
    InnerMomentum,
    PreClipNoise,
    RecordMomentum,
    Views,
)
from plumbline.gradients import PerSampleGradients
from plumbline.mechanism.release import PoissonSampling, StepRelease
from plumbline.methods import METHODS, Method
from plumbline.record_random import Draws

PUBLIC = torch.randn(4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


def blurred(rows: Tensor, draws: Draws) -> Tensor:
    """Views of records that are not images: every number times one of its own."""
    return rows * (1 + 0.2 * draws.uniform(*rows.shape[1:]))


# Bounds that many of the records reach, where the usual ones are for real gradients.
CLIPPED: dict[type[Clipping], Callable[[], Clipping]] = {
    Flat: lambda: Flat(1e-4),
    PerLayer: lambda: PerLayer({"inner": 0.5, "outer": 0.2}),
    QuantileAdaptive: lambda: QuantileAdaptive(initial=300.0),
    Global: lambda: Global(1.0, bound=2.1),
    GlobalAdapt: lambda: GlobalAdapt(0.5, initial=5.0, tolerance=0.5),
    PerGroup: lambda: PerGroup(0.5, form="paper"),
    Averaged: lambda: Averaged(0.05),
    GroupBatchNorm: lambda: GroupBatchNorm(0.05, size=2),
}
NAMED: dict[str, dict[str, Any]] = {
    "global_scaling": {"bound": 2.1},
    "global_adapt": {"initial": 2.0},
    "self_augmented": {"augment": blurred, "views": 3},
    "batch_clipping": {"public": PUBLIC, "companions": 2},
    "pre_clip_noise": {"scale": 0.5},
    "averaged": {"clip": 0.1, "size": 2},
    "group_batchnorm": {"clip": 0.1},
    "bam": {"radius": 0.5},
    "bam_exact": {"radius": 0.5},
    "dp_sam": {"radius": 0.5},
}
NOISE_FREE = ("clipped_only",)
"""Baselines that add no noise, but bound what they would add it to."""


FEW, MANY = all_kinds(3), all_kinds()
"""Records of all kinds in 288 batches, which catch every bug below; and in 672."""

on_few_and_many = pytest.mark.parametrize(
    "records", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)


def contract(method: Method, records: list[Neighbourhood], chunk: int | None = None) -> Contract:
    whole = any(isinstance(rule, RecordMomentum) for rule in method.evaluation)
    checked = check_contract(method, records, sampling_rate=1.0 if whole else 0.1, chunk=chunk)
    assert checked.broken is None, checked.broken
    assert checked.added >= (2000 if records is MANY else 900)
    assert checked.replaced >= (2000 if records is MANY else 900)
    for name, movement in checked.farthest_replaced.items():
        if "gradient" not in name:
            # A replaced record changes two counts by one each, where it moves a sum twice.
            assert movement.share <= math.sqrt(0.5) * (1 + SLACK), movement
    return checked


@on_few_and_many
@pytest.mark.parametrize("kind", CLIPPINGS.values(), ids=lambda kind: kind.__name__)
def test_every_clipping(kind: type[Clipping], records: list[Neighbourhood]) -> None:
    if kind is Unclipped:
        assert math.isinf(kind().sensitivity)
        return
    checked = contract(methods.compose(clipping=CLIPPED.get(kind, kind)()), records)
    assert checked.farthest["gradient"].share > 0.7  # the records do try the bound


def made(name: str) -> Method:
    return METHODS[name].make(**NAMED.get(name, METHODS[name].example()))


def is_only_a_clipping(name: str) -> bool:
    """Whether a method other than DP-SGD is nothing but a clipping, which has a test of its own."""
    method = made(name)
    return name != "dpsgd" and not method.evaluation and method.unbounded_reason is None


def slow_where(repeats: Callable[[str], bool]) -> pytest.MarkDecorator:
    """A test for each method by name; those that repeat what another test shows are slow."""
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=[pytest.mark.slow] if repeats(name) else []) for name in METHODS],
    )


@on_few_and_many
@slow_where(is_only_a_clipping)  # admission has these
def test_every_named_method(name: str, records: list[Neighbourhood]) -> None:
    method = made(name)
    if method.unbounded_reason is not None:
        assert_no_bound_is_claimed(method)
    if method.unbounded_reason is None or name in NOISE_FREE:
        checked = contract(method, records)
        assert checked.farthest["gradient"].share > 0.6


def assert_no_bound_is_claimed(method: Method) -> None:
    reason = method.unbounded_reason
    release = StepRelease(
        sampling=PoissonSampling(rate=0.1),
        queries=method.queries(1.0),
        unbounded_reason=reason,
    )
    assert reason is not None
    assert len(reason.split()) > 4
    assert release.no_guarantee_reason == reason
    assert release.noise_multiplier == 0  # as for no noise: epsilon is infinite


def test_dp_sat_as_released_claims_no_bound() -> None:
    assert_no_bound_is_claimed(methods.dp_sat(as_released=True))


COMBINED: dict[type[Evaluation], Callable[[], Evaluation]] = {
    Views: lambda: Views(blurred, 2),
    BatchClipping: lambda: BatchClipping(PUBLIC, 2),
    DpSam: lambda: DpSam(0.5),
    DpSat: lambda: DpSat(0.5),
    DpSatMomentum: lambda: DpSatMomentum(0.5),
    Bam: lambda: Bam(0.5),
    InnerMomentum: lambda: InnerMomentum(2, 0.5),
    PreClipNoise: lambda: PreClipNoise(0.5),
}


@dataclass(frozen=True)
class Combination:
    """Parts of a method, and the size of physical chunks."""

    rules: tuple[type[Evaluation], ...]
    clipping: type[Clipping]
    chunk: int | None

    def __str__(self) -> str:
        parts = " + ".join(part.__name__ for part in (*self.rules, self.clipping))
        return parts if self.chunk is None else f"{parts} in chunks of {self.chunk}"

    @property
    def cost(self) -> int:
        """About how long a step takes; the cheaper ones are run more often."""
        again = 2 if RecordMomentum in self.rules else 1
        return self.make().passes * (1 if self.chunk is None else 2) * again

    def make(self) -> Method:
        clipping: Clipping = CLIPPED.get(self.clipping, self.clipping)()
        rules = [COMBINED.get(rule, rule)() for rule in self.rules]
        if isinstance(clipping, PerLayer):
            clipping = PerLayer(0.5)  # whatever layers there are
        return methods.compose(evaluation=rules, clipping=clipping)


def combinations(count: int) -> list[Combination]:
    """Combinations drawn at random, without those that have no meaning."""
    draw = random.Random(0)
    found: list[Combination] = []
    slots = ("records", "weights", "gradient", "update")
    rules = {
        slot: [None, *(one for one in EVALUATIONS.values() if one.slot == slot)] for slot in slots
    }
    while len(found) < count:
        drawn = (draw.choice(rules[slot]) for slot in slots)
        bounded = [one for one in CLIPPINGS.values() if one is not Unclipped]
        chosen = Combination(
            tuple(rule for rule in drawn if rule is not None),
            draw.choice(bounded),
            draw.choice([None, None, 2]),
        )
        try:
            chosen.make()
        except ValueError:
            continue
        if chosen not in found:
            found.append(chosen)
    return found


DRAWN = sorted(combinations(30), key=lambda one: one.cost)
FAST = 1


@on_few_and_many
@pytest.mark.parametrize(
    "combination",
    [
        pytest.param(one, id=str(one), marks=[pytest.mark.slow] if place >= FAST else [])
        for place, one in enumerate(DRAWN)
    ],
)
def test_combinations_drawn_at_random(
    combination: Combination, records: list[Neighbourhood]
) -> None:
    contract(combination.make(), records, chunk=combination.chunk)


class Stored(Clipping):
    """A clipping to be broken: that of Abadi et al. at C = 1."""

    sensitivity = 1.0

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return flat_factors(norms, 1.0)


class DividesByTheBatch(Stored):
    """Alg. 1 of most papers: the noisy sum is divided by the realised batch size."""

    def clipped_sum(
        self, gradients: Gradients, norms: Tensor, finite: Tensor, groups: Tensor | None
    ) -> dict[str, Tensor]:
        self._size = len(norms)
        return super().clipped_sum(gradients, norms, finite, groups)

    def normaliser(self, expected_size: int) -> float:
        return float(getattr(self, "_size", 1))


class ClipsAtTheMedian(Stored):
    """Tells the median norm by its sensitivity."""

    sensitivity = 1.0

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        self.sensitivity = max(float(norms.median()), 1e-3)
        return flat_factors(norms, self.sensitivity)


class ClipsAtTheMedianInSilence(Stored):
    """The sensitivity is a constant, and holds: but one record moves all the others' factors."""

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        return flat_factors(norms, min(1.0, float(norms.median())))


class Understates(Stored):
    """The sensitivity is one percent too small."""

    sensitivity = 0.99


class LetsNanThrough(Stored):
    """Does not leave out what is not finite."""

    def clipped_sum(
        self, gradients: Gradients, norms: Tensor, finite: Tensor, groups: Tensor | None
    ) -> dict[str, Tensor]:
        return gradients.sum(self.factors(norms, groups))


class ChunksTheBatch(Stored):
    """p-averaging with groups cut from the realised batch: one record shifts all later groups."""

    sensitivity = 2 * 1e-3

    def clipped_sum(
        self, gradients: Gradients, norms: Tensor, finite: Tensor, groups: Tensor | None
    ) -> dict[str, Tensor]:
        assert isinstance(gradients, PerSampleGradients)
        if not bool(finite.any()):
            return gradients.sum(torch.zeros_like(norms))
        there = gradients.select(finite.nonzero()[:, 0])
        pooled = there.pool(torch.arange(there.records) // 2)
        return pooled.sum(flat_factors(pooled.norms() / 2, 1e-3) / 2)


class AccumulatesAcrossRecords(Bam):
    """Alg. 2 of paper 000 read literally: each record starts where the one before it ended."""

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        own = chunk.capture()
        scale = torch.nan_to_num(0.5 / own.norms(), posinf=0.0)
        offset = {name: torch.zeros_like(value) for name, value in chunk.parameters().items()}
        rows: list[Mapping[str, Tensor]] = []
        for record, gradient in enumerate(_rows(own)):
            if bool(torch.isfinite(own.norms()[record])):
                offset = {name: offset[name] + scale[record] * gradient[name] for name in offset}
            rows.append(_rows(chunk.capture(at=offset))[record])
        dense = {name: torch.stack([row[name] for row in rows]) for name in own.names}
        return PerSampleGradients.of(dense, own.losses)


def _rows(gradients: PerSampleGradients) -> list[Mapping[str, Tensor]]:
    gradients.norms()
    dense = gradients.materialise()
    return [{name: dense[name][row] for name in dense} for row in range(gradients.records)]


BROKEN: dict[str, tuple[Callable[[], Method], str]] = {
    "divides by the batch": (
        lambda: methods.compose(clipping=DividesByTheBatch()),
        "changes the update, which is not asked for",
    ),
    "clips at the median": (lambda: methods.compose(clipping=ClipsAtTheMedian()), "is asked"),
    "clips at the median in silence": (
        lambda: methods.compose(clipping=ClipsAtTheMedianInSilence()),
        "'gradient' moves by",
    ),
    "understates by a percent": (
        lambda: methods.compose(clipping=Understates()),
        "'gradient' moves by",
    ),
    "lets NaN through": (
        lambda: methods.compose(clipping=LetsNanThrough()),
        "is not finite",
    ),
    "chunks the batch": (
        lambda: methods.compose(clipping=ChunksTheBatch()),
        "'gradient' moves by",
    ),
    "accumulates across records": (
        lambda: methods.compose(evaluation=AccumulatesAcrossRecords(), clipping=Flat(1.0)),
        "'gradient' moves by",
    ),
}


@on_few_and_many
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_strategy_is_caught(what: str, records: list[Neighbourhood]) -> None:
    make, message = BROKEN[what]
    found = check_contract(make(), records)
    assert found.broken is not None
    assert message in found.broken
    if message.endswith("moves by"):
        assert found.beyond is not None
        assert found.beyond.question == "gradient"
        assert found.beyond.moved > found.beyond.declared


@on_few_and_many
def test_moves_that_stay_in_the_weights_are_caught(records: list[Neighbourhood]) -> None:
    found = check_contract(methods.dp_sat(as_released=True), records, chunk=2)
    assert "changes the weights, which is not asked for" in str(found.broken)


@on_few_and_many
def test_gram_norms_are_caught_if_they_are_trusted(
    monkeypatch: pytest.MonkeyPatch, records: list[Neighbourhood]
) -> None:
    """The records cancel in float32: without the engine's guard, clipping would be at a wrong norm.

    So they are a test of it.
    """
    monkeypatch.setattr("plumbline.gradients.norms._guard", lambda squares, terms, held: None)
    assert "'gradient' moves by" in str(check_contract(methods.normalised(), records).broken)


@on_few_and_many
def test_the_records_are_of_every_kind(records: list[Neighbourhood]) -> None:
    assert {kind for data in records for kind in data.kinds} == set(KINDS)
