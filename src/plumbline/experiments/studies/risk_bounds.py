"""Lower bounds on how much more clipping costs one group than the other.

Gradient Misalignment, Figs. 5 and 7.

Along a run of DP-SGD, the excess of group 0's risk over group 1's is compared with the bound of
Tran et al. (2021) on R_clip and with Prop. 3's on R_dir, and the largest eigenvalue of a group's
Hessian with one over the learning rate, which Prop. 3 assumes to be larger. As in App. B.3, group
gradients and Hessians are over all training records; expectations are over batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from plumbline.diagnostics import (
    Hessian,
    excessive_risk,
    risk_gap_bounds,
    sample_of,
    spectrum,
)
from plumbline.experiments.recipe import Recipe, RecipeError, SettingsPart
from plumbline.experiments.studies.base import Job, Measurements, first_run, over_seeds, study
from plumbline.results import Undefined, minus
from plumbline.training import Private

READINGS = "bounds.jsonl"


class RiskBoundsPart(SettingsPart):
    """What is looked at.

    Attributes:
        recipe: Its first row is trained, once for each seed.
        every: How many steps lie between readings.
        batches: How many batches an expectation is over.
        lanczos: How many steps the largest eigenvalue is given.
    """

    recipe: dict[str, Any]
    every: int = Field(ge=1)
    batches: int = Field(default=10, ge=1)
    lanczos: int = Field(default=12, ge=2)


@study("risk-bounds")
def risk_bounds(job: Job) -> Measurements:
    """Gaps and bounds: means, and the reading where each bound is nearest to failing."""
    part = job.checked(RiskBoundsPart)
    recipe = Recipe.of(part.recipe)

    def measure(seed: int, folder: Path) -> dict[str, float]:
        readings = list(_readings(recipe, part, seed))
        if not readings:
            raise RecipeError(f"every is {part.every}, longer than the run: there is no reading.")
        lines = "".join(json.dumps(row) + "\n" for row in readings)
        (folder / READINGS).write_text(lines, encoding="utf-8")
        return {f"DPSGD / {key}": value for key, value in _summary(readings).items()}

    return Measurements(over_seeds(job, recipe, measure))


def _summary(readings: list[dict[str, float]]) -> dict[str, float]:
    def mean(key: str) -> float:
        return sum(row[key] for row in readings) / len(readings)

    return {
        "R_clip gap": mean("clip_gap"),
        "bound of Tran et al.": mean("clip_bound"),
        "largest bound of Tran et al.": max(row["clip_bound"] for row in readings),
        "R_dir gap": mean("direction_gap"),
        "bound of Prop. 3": mean("direction_bound"),
        "smallest R_dir gap less bound of Prop. 3": min(
            row["direction_gap"] - row["direction_bound"] for row in readings
        ),
        "share of readings with a positive bound of Prop. 3": sum(
            row["direction_bound"] > 0 for row in readings
        )
        / len(readings),
        "largest eigenvalue times learning rate": max(row["stability"] for row in readings),
    }


def _readings(recipe: Recipe, part: RiskBoundsPart, seed: int) -> Iterator[dict[str, float]]:
    private, splits = first_run(recipe, seed)
    features = splits.train.sensitive_features
    if features is None or len(splits.groups) != 2:
        raise RecipeError(f"The bounds are for two groups; {splits.name} has {splits.groups}.")
    members = [(features == group).nonzero()[:, 0] for group in (0, 1)]
    generator = torch.Generator().manual_seed(seed)
    for batch in private:
        private.step(batch)
        if private.steps_done % part.every == 0:
            row = _reading(private, members, part, generator)
            if row is not None:
                yield {"step": private.steps_done, **row}


def _reading(
    private: Private, members: list[Tensor], part: RiskBoundsPart, generator: torch.Generator
) -> dict[str, float] | None:
    """The gaps and their bounds at the present weights; None where one of them has no value."""
    rate = float(private.optimizer.param_groups[0]["lr"])
    size = sum(map(len, members))
    drawn = [
        torch.randperm(size, generator=generator)[: private.plan.expected_batch_size]
        for _ in range(part.batches)
    ]
    batches = [sample_of(private, index) for index in drawn]
    hessians = [_hessian(private, own) for own in members]
    risks = [excessive_risk(hessian, batches, rate) for hessian in hessians]
    ends = [spectrum(one, generator, count=1, steps=part.lanczos) for one in hessians]
    if any(isinstance(one, Undefined) for one in ends):
        return None
    first, second = (one.largest[0] for one in ends if not isinstance(one, Undefined))
    bounds = risk_gap_bounds(
        risks[0],
        risks[1],
        batches,
        learning_rate=rate,
        eigenvalues=(first, second),
        shares=(len(members[0]) / size, len(members[1]) / size),
    )
    row = {
        "clip_gap": minus(risks[0].clip, risks[1].clip),
        "clip_bound": bounds.clipping,
        "direction_gap": minus(risks[0].direction, risks[1].direction),
        "direction_bound": bounds.direction,
        "direction_bound_simple": bounds.direction_simple,
        "stability": rate * max(first, second),
    }
    known = {key: value for key, value in row.items() if not isinstance(value, Undefined)}
    return known if len(known) == len(row) else None


def _hessian(private: Private, index: Tensor) -> Hessian:
    records = private.fetch(index)
    return Hessian(private.model, lambda: private.loss(private.model, records))
