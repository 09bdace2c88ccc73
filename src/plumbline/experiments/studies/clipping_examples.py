"""Flat clipping stalls away from the optimum, pre-clipping noise approaches it.

Geometric Perspective, Fig. 4.

Every record's loss is ``|x - a_i|^2 / 2``, clip 1, noise N(0, I) on the mean. The repetitions are
the rows of one tensor program, ``updated``, with the library's own clipping; that a private step of
the library is this program is shown by the tests. What the paper leaves open is our choice: the
start (5 in Examples 1 and 2, 0 in the mixture), k in {0, 5, 10}, full batches in the examples,
equal weights of the mixture's components, its batches of 128, and how long.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from plumbline.clipping import Flat
from plumbline.experiments.recipe import SettingsPart
from plumbline.experiments.studies.base import Job, Measured, Measurements, study

REPETITIONS = 20
SCALES = (0.0, 5.0, 10.0)  # k; 0 is flat clipping
EXAMPLES = {"1": (-3.0, -3.0, 9.0), "2": (-3.0, 3.0)}
START, STEPS, RATE = 5.0, 60_000, 0.001
DIMENSION, RECORDS, BATCH, MIXTURE_RATE = 10, 10_000, 128, 0.015
FLAT = Flat(1.0)
_BLOCK = 1000


class ExamplesPart(SettingsPart):
    """How long the examples run.

    Attributes:
        steps: Of Examples 1 and 2.
        mixture_steps: Of the mixture.
        seed: Of data and noise.
    """

    steps: int = Field(default=STEPS, ge=1)
    mixture_steps: int = Field(default=8_000, ge=1)
    seed: int = 0


@study("examples")
def examples(job: Job) -> Measurements:
    """The distance from the optimum at the end of each example, for each k."""
    part = job.checked(ExamplesPart)
    found: dict[str, Measured] = {}
    for name, targets in EXAMPLES.items():
        ends = positions(targets, steps=part.steps, seed=part.seed)
        optimum = sum(targets) / len(targets)
        found |= _rows(f"Example {name}", (ends - optimum).abs())
    found |= _rows("mixture", mixture_distances(part.mixture_steps, seed=part.seed))
    return Measurements(found)


@torch.inference_mode()
def positions(targets: Sequence[float], *, steps: int = STEPS, seed: int = 0) -> Tensor:
    """The x after all steps, for each k (rows) and repetition; the k share zeta and noise."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.tensor(targets, dtype=torch.float64)[:, None]
    scales = torch.tensor(SCALES, dtype=torch.float64).view(-1, 1, 1, 1)
    x = torch.full((len(SCALES), REPETITIONS, 1), START, dtype=torch.float64)
    for done in range(0, steps, _BLOCK):
        block = min(_BLOCK, steps - done)
        zeta = torch.randn(
            (block, 1, REPETITIONS, len(a), 1), generator=generator, dtype=torch.float64
        )
        noise = torch.randn((block, REPETITIONS, 1), generator=generator, dtype=torch.float64)
        for shifts, z in zip((scales * zeta).unbind(), noise.unbind(), strict=True):
            x = updated(x, a, shifts, z, rate=RATE, expected=len(a))
    return x[..., 0]


@torch.inference_mode()
def mixture_distances(steps: int, *, seed: int = 0) -> Tensor:
    """The distance from the mixture's optimum after all steps, for each k (rows) and repetition.

    Every repetition has a data set of its own; batches are drawn with replacement.
    """
    generator = torch.Generator().manual_seed(seed)
    data = mixture(REPETITIONS, RECORDS, generator)
    rows = torch.arange(REPETITIONS)[:, None]
    scales = torch.tensor(SCALES).view(-1, 1, 1, 1)
    x = torch.zeros(len(SCALES), REPETITIONS, DIMENSION)
    for _ in range(steps):
        drawn = torch.randint(RECORDS, (REPETITIONS, BATCH), generator=generator)
        zeta = torch.randn((REPETITIONS, BATCH, DIMENSION), generator=generator)
        noise = torch.randn((REPETITIONS, DIMENSION), generator=generator)
        x = updated(x, data[rows, drawn], scales * zeta, noise, rate=MIXTURE_RATE, expected=BATCH)
    distances: Tensor = torch.linalg.vector_norm(x - data.mean(1), dim=-1)
    return distances


def mixture(repetitions: int, records: int, generator: torch.Generator) -> Tensor:
    """Data sets of three equally likely unit Gaussians, ``[repetitions, records, 10]``."""
    size = (repetitions, records, DIMENSION)
    spread = torch.tensor([6.0, 2.0, 1.0])[:, None]  # deviations of the components' means
    means = spread * torch.randn((repetitions, 3, DIMENSION), generator=generator)
    component = torch.randint(3, size[:2], generator=generator)
    centres = means.gather(1, component[..., None].expand(size))
    return centres + torch.randn(size, generator=generator)


def updated(
    x: Tensor, targets: Tensor, shifts: Tensor, noise: Tensor, *, rate: float, expected: int
) -> Tensor:
    """One step of DP-SGD on many problems at once.

    From Geometric Perspective, section 5, after Theorem 6.

    Args:
        x: ``[..., d]``.
        targets: The batch's ``a_i``, ``[..., B, d]``.
        shifts: ``k zeta_i``, ``[..., B, d]``.
        noise: ``Z_t``, on the mean, ``[..., d]``.
        rate: The learning rate.
        expected: What the sum over the batch is divided by.
    """
    gradients = x.unsqueeze(-2) - targets + shifts
    factors = FLAT.factors(torch.linalg.vector_norm(gradients, dim=-1))
    clipped = (factors.unsqueeze(-2) @ gradients).squeeze(-2) / expected
    return x - rate * (clipped + noise)


def _rows(example: str, distances: Tensor) -> dict[str, Measured]:
    return {
        f"{example}, k = {scale:g} / distance": Measured.of(own.tolist())
        for scale, own in zip(SCALES, distances, strict=True)
    }
