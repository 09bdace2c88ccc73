"""Gradients lie more symmetrically about their mean after some training.

Geometric Perspective, Figs. 1 to 3.

A recipe's first row is trained, and at the start and at the end of some epochs its gradients are
projected on random planes and compared with the true gradient. The paper judges by eye; in numbers,
the asymmetry of a projection is the Wasserstein distance between its values and their mirror image
about the mean, in standard deviations. A symmetric distribution of B values has about
``1.15 / sqrt(B)`` by chance. The readings for the figures are in each seed's ``diagnostics.jsonl``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field
from scipy import stats
from torch import Tensor

from plumbline.diagnostics import NOT_COVERED, Look, Probe, projections, symmetry
from plumbline.experiments.files import append_row, kept_rows
from plumbline.experiments.probing import DIAGNOSTICS
from plumbline.experiments.recipe import Recipe, SettingsPart
from plumbline.experiments.studies.base import Job, Measurements, first_run, over_seeds, study
from plumbline.results import Undefined
from plumbline.training import Private
from plumbline.training.fitting import StepInfo
from plumbline.without_trace import evaluating

PLANES = 8  # Fig. 2


class SymmetryPart(SettingsPart):
    """What is looked at.

    Attributes:
        recipe: Its first row is trained, once for each seed.
        every: How many epochs lie between looks; the first is before training.
        records: On how many training records.
    """

    recipe: dict[str, Any]
    every: int = Field(ge=1)
    records: int = Field(default=512, ge=16)


@study("symmetry")
def symmetry_over_training(job: Job) -> Measurements:
    """Asymmetry before and along training; the rows are epochs."""
    part = job.checked(SymmetryPart)
    recipe = Recipe.of(part.recipe)
    return Measurements(
        over_seeds(job, recipe, lambda seed, folder: _trained(recipe, part, seed, folder))
    )


def asymmetry(values: Tensor) -> float:
    """How far values ``[B]`` lie from their mirror image about the mean, in deviations."""
    centred = values.double() - values.double().mean()
    deviation = float(centred.std())
    if deviation == 0:
        return 0.0
    z = (centred / deviation).numpy()
    return float(stats.wasserstein_distance(z, -z))


def _trained(recipe: Recipe, part: SymmetryPart, seed: int, folder: Path) -> dict[str, float]:
    """What was found at the end of each epoch that was looked at, after 0 before training."""
    private, splits = first_run(recipe, seed)
    path = folder / DIAGNOSTICS
    kept_rows(path, -1, head=[{"label": NOT_COVERED}])
    probe = Probe(
        records=part.records,
        measure=("symmetry", asymmetries),
        group_names=dict(enumerate(splits.groups)),
        seed=seed,
        on_reading=lambda reading: append_row(path, reading.to_json()),
    )
    size, records = private.plan.expected_batch_size, len(splits.train)
    last = private.plan.steps * size // records
    wanted = {-(-epoch * records // size): epoch for epoch in range(0, last + 1, part.every)}
    found: dict[str, float] = {}

    def look(private: Private, step: int) -> None:
        if step not in wanted:
            return
        with evaluating(private.model):  # dropout would be measured too
            probe.after_step(private, StepInfo(step, step, lambda: 0.0, private.plan.delta))
        numbers = probe.readings[-1].results[asymmetries.__name__]
        found.update({f"epoch {wanted[step]} / {key}": value for key, value in numbers.items()})

    look(private, 0)
    private.fit([lambda run, info: look(run, info.step)], progress=False)
    return found


def asymmetries(look: Look) -> dict[str, float]:
    """The asymmetry of the gradients in random planes, and their cosines with the mean."""
    planes = projections(look.sample, look.generator, PLANES).cpu()
    by_plane = [(asymmetry(one[:, 0]) + asymmetry(one[:, 1])) / 2 for one in planes]
    found = symmetry(look.sample)
    numbers = {
        "asymmetry": sum(by_plane) / len(by_plane),
        "asymmetry of the worst plane": max(by_plane),
        "share of negative cosines": float((found.cosines < 0).double().mean()),
        "mean cosine": float(found.cosines.mean()),
    }
    if not isinstance(found.wasserstein, Undefined):
        assert not isinstance(found.gradient_norm, Undefined)
        assert not isinstance(found.clip, Undefined)
        # Theorem 5's distance is at most |g| c.
        scale = found.gradient_norm * found.clip
        numbers["Wasserstein distance over |g| c"] = found.wasserstein / scale
    return numbers
