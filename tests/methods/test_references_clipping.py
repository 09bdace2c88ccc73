"""Every clipping by name against a literal loop: factors, sensitivities, counts and their state."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import plumbline as pl
from tests.methods.literal import CHUNKS, CLIP, RECORDS, SIGMA, Case, Reference, Run, clipped


class Dpsgd(Reference):
    """Abadi et al. 2016, Alg. 1: clip each, add up, add noise once, divide by L."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            total += clipped(self.gradient(record))
        return self.released(total, CLIP, step)


class Normalised(Reference):
    """Paper 003, Eq. 8: every gradient has norm one."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            gradient = self.gradient(record)
            total += gradient / gradient.norm()
        return self.released(total, 1.0, step)


class Automatic(Reference):
    """AUTO-S of Bu et al. 2022: C g / (|g| + 0.01)."""

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            gradient = self.gradient(record)
            total += CLIP * gradient / (gradient.norm() + 0.01)
        return self.released(total, CLIP, step)


class PerLayer(Reference):
    """methods.md, B: the convolution, the group norm and the linear layer, each by itself."""

    bounds = (CLIP / math.sqrt(3),) * 3
    sizes = (27 + 3, 3 + 3, 96 + 2)

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            layers = self.gradient(record).split(self.sizes)
            total += torch.cat([clipped(g, c) for g, c in zip(layers, self.bounds, strict=True)])
        return self.released(total, math.hypot(*self.bounds), step)


class PerLayerOwn(PerLayer):
    """The same with a bound for each layer."""

    bounds = (2.0, 0.5, 4.0)


class Adaptive(Reference):
    """Andrew et al. 2021, Alg. 1: C <- C exp(-rate (b / L - quantile)), b a noisy count."""

    settings: ClassVar = dict(initial=6.0, quantile=0.4, rate=0.5, count_noise=2.0)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.bound = self.settings["initial"]

    def update(self, step: int, batch: list[int]) -> Tensor:
        total, within = self.zero(), 0
        for record in batch:
            gradient = self.gradient(record)
            within += int(gradient.norm() <= self.bound)
            total += clipped(gradient, self.bound)
        update = self.released(total, self.bound, step)
        # The count is the step's second question.
        count = torch.tensor([within], dtype=torch.float64)
        noisy = float(self.noisy(count, 1.0, step, 1, self.settings["count_noise"], 0.0))
        share = noisy / self.expected
        self.bound *= math.exp(-self.settings["rate"] * (share - self.settings["quantile"]))
        return update

    def state(self) -> dict[str, Any]:
        return {"bound": self.bound}


class Global(Reference):
    """Paper 004, Alg. 2 (Bu et al. 2021): C/Z within Z, zero beyond."""

    bound = 9.0

    def update(self, step: int, batch: list[int]) -> Tensor:
        total = self.zero()
        for record in batch:
            gradient = self.gradient(record)
            if gradient.norm() <= self.bound:
                total += CLIP / self.bound * gradient
        return self.released(total, CLIP, step)


class GlobalAdapt(Reference):
    """Paper 004, Alg. 2 in red: C/Z within Z, C/|g| beyond; Z follows a noisy count, over L.

    methods.md, B: never below C.
    """

    settings: ClassVar = dict(initial=9.0, rate=0.4, tolerance=0.8, count_noise=1.5)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.bound = self.settings["initial"]

    def update(self, step: int, batch: list[int]) -> Tensor:
        total, beyond = self.zero(), 0
        for record in batch:
            gradient = self.gradient(record)
            norm = float(gradient.norm())
            total += (CLIP / self.bound if norm <= self.bound else CLIP / norm) * gradient
            beyond += int(norm > self.settings["tolerance"] * self.bound)
        update = self.released(total, CLIP, step)
        count = torch.tensor([beyond], dtype=torch.float64)
        noisy = float(self.noisy(count, 1.0, step, 1, self.settings["count_noise"], 0.0))
        self.bound *= math.exp(-self.settings["rate"] + noisy / self.expected)
        self.bound = max(self.bound, CLIP)
        return update

    def state(self) -> dict[str, Any]:
        return {"bound": self.bound}


class GlobalAdaptAtFloor(GlobalAdapt):
    """Shrinks fast, so that Z reaches C."""

    settings: ClassVar = dict(initial=9.0, rate=1.0, tolerance=0.8, count_noise=1.5)


GROUPS = (3, 7, 9)  # declared; no record is of the last one
OF_RECORD = [3 if record % 3 else 7 for record in range(RECORDS)]


class DpsgdF(Reference):
    """Paper 004, Alg. 3, with methods.md, B: counts first, then C_k = C (1 + r_k / mean r_k)."""

    form, count_ratio = "released", 0.5

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.bounds = [CLIP] * len(GROUPS)

    def update(self, step: int, batch: list[int]) -> Tensor:
        counts = torch.zeros(len(GROUPS), 2, dtype=torch.float64)
        for record in batch:
            above = float(self.gradient(record).norm()) > CLIP
            counts[GROUPS.index(OF_RECORD[record]), 0 if above else 1] += 1
        # One question about all counts, before that about the gradient.
        noisy = self.noisy(counts, 1.0, step, 0, self.count_ratio * SIGMA, 0.0).tolist()
        above, rest = zip(*([max(math.floor(n), 0) for n in row] for row in noisy), strict=True)
        shares = [m / (m + o) if m + o else 1.0 for m, o in zip(above, rest, strict=True)]
        self.bounds = [CLIP * (1 + self.ratio(share, shares, above, rest)) for share in shares]
        total = self.zero()
        for record in batch:
            bound = self.bounds[GROUPS.index(OF_RECORD[record])]
            total += clipped(self.gradient(record), bound)
        return self.released(total, max(self.bounds), step)

    def ratio(self, share: float, shares: list[float], above: Any, rest: Any) -> float:
        """How much larger a group's bound is, from the noisy counts."""
        usual = sum(shares) / len(shares)
        return share / usual if usual else 0.0

    def state(self) -> dict[str, Any]:
        return {"bounds": self.bounds}


class DpsgdFNoisy(DpsgdF):
    """With the paper's count noise, ten times sigma: most counts come out as zero."""

    count_ratio = 10.0


class DpsgdFPaper(DpsgdF):
    """As Alg. 3 prints: r_k / (m / b), b the noisy total; at most K (methods.md, B)."""

    def ratio(self, share: float, shares: list[float], above: Any, rest: Any) -> float:
        if share == 0:
            return 0.0
        usual = sum(above) / max(1, sum(above) + sum(rest))
        return min(share / usual, len(GROUPS)) if usual else float(len(GROUPS))


class DpsgdFPaperNoisy(DpsgdFPaper):
    count_ratio = 10.0


class Averaged(Reference):
    """Paper 003, section 3.3, with methods.md, A5: buckets, not cuts of the batch; 2C, over L/p."""

    size = 2

    def update(self, step: int, batch: list[int]) -> Tensor:
        buckets: dict[int, Tensor] = {}
        count = round(self.expected / self.size)
        for record in batch:
            bucket = int(self.draws("buckets", step, record).integers(count))
            buckets[bucket] = buckets.get(bucket, self.zero()) + self.gradient(record)
        total = self.zero()
        for pooled in buckets.values():
            total += clipped(pooled / self.size)
        noisy = self.noisy(total, 2 * CLIP, step, None, SIGMA)
        return noisy / (self.expected / self.size)


def with_groups() -> dict[str, Any]:
    return {"sensitive_features": OF_RECORD}


named = pl.methods
CASES = [
    Case(named.dpsgd(CLIP), Dpsgd),
    Case(named.compose(clipping={"name": "Flat", "clip": CLIP}, name="compose"), Dpsgd),
    Case(named.normalised(), Normalised),
    Case(named.automatic(CLIP), Automatic),
    Case(named.per_layer(CLIP), PerLayer),
    Case(
        named.per_layer(dict(zip(("0", "1", "4"), PerLayerOwn.bounds, strict=True))),
        PerLayerOwn,
        "own bounds",
    ),
    Case(named.adaptive(**Adaptive.settings), Adaptive),
    Case(named.global_scaling(CLIP, Global.bound), Global),
    Case(named.global_adapt(CLIP, **GlobalAdapt.settings), GlobalAdapt),
    Case(named.global_adapt(CLIP, **GlobalAdaptAtFloor.settings), GlobalAdaptAtFloor, "Z at C"),
    Case(named.dpsgd_f(CLIP, GROUPS, 0.5), DpsgdF, "released form", with_groups),
    Case(named.dpsgd_f(CLIP, GROUPS), DpsgdFNoisy, "noisy counts", with_groups),
    Case(named.dpsgd_f(CLIP, GROUPS, 0.5, "paper"), DpsgdFPaper, "paper's form", with_groups),
    Case(
        named.dpsgd_f(CLIP, GROUPS, form="paper"),
        DpsgdFPaperNoisy,
        "paper's form, noisy counts",
        with_groups,
    ),
    Case(named.averaged(CLIP, Averaged.size), Averaged),
]


@pytest.mark.parametrize("most", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_clipping_is_its_papers_loop(case: Case, most: int | None) -> None:
    case.check(most)


def test_the_runs_show_what_they_are_to_show() -> None:
    """Norms on both sides of C and of Z, counts that move the bounds, and Z that reaches C."""
    run = CASES[0].check(None)
    reference = Dpsgd(run)
    norms = [float(reference.gradient(record).norm()) for record in run.batches[0]]
    assert min(norms) < CLIP < max(norms)
    assert min(norms) < Global.bound < max(norms)
    by_name = {str(case): case for case in CASES}
    for name, moving in (("adaptive", "bound"), ("global_adapt", "bound")):
        bounds = [float(state[moving]) for state in by_name[name].check(None).states]
        assert len(set(bounds)) == len(bounds)
    floor = [float(state["bound"]) for state in by_name["global_adapt, Z at C"].check(None).states]
    assert CLIP in floor
    for form in ("released form", "paper's form"):
        states = by_name[f"dpsgd_f, {form}"].check(None).states
        assert any(len(set(map(float, state["bounds"]))) > 1 for state in states)
