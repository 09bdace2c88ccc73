"""Noise moves the gradient further in a sharp minimum than in a flat one.

Sharpness-Aware Training, Fig. 4.

Noisy gradient descent on the toy loss of App. C.3, from points at the same distance of each
minimum, with the same noise in each step.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field

from plumbline.diagnostics import NoisyStep, descend_two_minima
from plumbline.experiments.recipe import SettingsPart
from plumbline.experiments.studies.base import Job, Measurements, over_runs, study
from plumbline.results import Undefined

CENTRES = {"flat": (2.5, 2.5), "sharp": (7.5, 7.5)}


class TwoMinimaPart(SettingsPart):
    """A descent.

    Attributes:
        distance: Of the start from the minimum, in a direction of its own for each repetition.
        steps: How many there are.
        learning_rate: Of each.
        noise: The standard deviation of each coordinate's noise.
        repetitions: How many descents of each kind.
    """

    distance: float = Field(gt=0)
    steps: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    noise: float = Field(gt=0)
    repetitions: int = Field(ge=1)


@study("two-minima")
def two_minima_study(job: Job) -> Measurements:
    """For each minimum: sharpness, how far noise moves the next gradient, and how they agree."""
    part = job.checked(TwoMinimaPart)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CENTRES}
    for repetition in range(part.repetitions):
        angle = 2 * math.pi * repetition / part.repetitions
        way = part.distance * torch.tensor([math.cos(angle), math.sin(angle)])
        for name, centre in CENTRES.items():
            steps = descend_two_minima(
                torch.tensor(centre) + way,
                torch.Generator().manual_seed(repetition),
                steps=part.steps,
                learning_rate=part.learning_rate,
                noise=part.noise,
            )
            found[name].append(_summary(steps))
    return Measurements(
        {
            f"{name} minimum / {metric}": over_runs(metric, [one[metric] for one in runs])
            for name, runs in found.items()
            for metric in runs[0]
        }
    )


def _summary(steps: list[NoisyStep]) -> dict[str, float]:
    """Over the steps that have a curvature; at a kink there is none, and nothing to compare."""
    known = [
        (step.sharpness, step.difference, step.bound)
        for step in steps
        if not isinstance(step.sharpness, Undefined) and not isinstance(step.bound, Undefined)
    ]
    sharpness, difference, bound = torch.tensor(known, dtype=torch.float64).T
    return {
        "sharpness": float(sharpness.mean()),
        "gradient difference": float(difference.mean()),
        "correlation": float(torch.corrcoef(torch.stack([sharpness, difference]))[0, 1]),
        "largest difference over bound": float((difference / bound).max()),
    }
