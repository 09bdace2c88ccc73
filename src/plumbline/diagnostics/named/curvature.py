"""How sharp the loss is where the run stands, and between its start and its end.

From Sharpness-Aware Training.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from plumbline.diagnostics.curvature import density as density_of
from plumbline.diagnostics.curvature import spectrum as spectrum_of
from plumbline.diagnostics.landscape import Landscape
from plumbline.diagnostics.landscape import interpolation as losses_between
from plumbline.diagnostics.landscape import landscape as landscape_of
from plumbline.diagnostics.look import Look, diagnostic
from plumbline.diagnostics.sharpness import estimated_sharpness as sharpness_of
from plumbline.diagnostics.sharpness import noise_bound as bound_of
from plumbline.results import Number, Undefined

LANCZOS_STEPS, FINAL_STEPS = 16, 30
POINTS, REACH = 15, 0.75
POSITIONS = tuple(place / 20 - 0.25 for place in range(31))  # from -0.25 to 1.25
RADIUS = 0.05


@diagnostic
def hessian(look: Look) -> dict[str, Number]:
    """The largest eigenvalue of the Hessian of each group's mean loss, and of all records'."""
    wanted: dict[str, Tensor | None] = {"all": None, **look.groups}
    return {name: largest_eigenvalue(look, own) for name, own in wanted.items()}


@diagnostic
def estimated_sharpness(look: Look) -> Number:
    """How far the loss rises 0.05 uphill along the plain mean gradient."""
    return sharpness_of(look.private.model, look.sample, look.loss, RADIUS)


@diagnostic
def noise_bound(look: Look) -> dict[str, Number]:
    """How far a step's noise can move the next gradient (Theorem 3.2), and what it is made of."""
    sample, rate = look.sample, float(look.private.optimizer.param_groups[0]["lr"])
    largest = largest_eigenvalue(look, None)
    clipping = sample.clipping
    if isinstance(largest, Undefined) or math.isinf(clipping.sensitivity):
        reason = largest if isinstance(largest, Undefined) else Undefined("the run does not clip")
        return {"sharpness": largest, "noise_norm": reason, "bound": reason}
    std = sample.noise_multiplier * clipping.sensitivity / clipping.normaliser(sample.size)
    length = std * math.sqrt(sample.dimensions)
    bound = bound_of(rate, abs(largest), length)
    return {"sharpness": largest, "noise_norm": length, "bound": bound}


@diagnostic(when="end")
def spectrum(look: Look) -> Any:
    """The ten largest eigenvalues of the Hessian."""
    return spectrum_of(look.hessian(), look.generator, count=10, steps=FINAL_STEPS)


@diagnostic(when="end")
def density(look: Look) -> Any:
    """The distribution of the Hessian's eigenvalues (Fig. 8)."""
    return density_of(look.hessian(), look.generator, steps=FINAL_STEPS)


@diagnostic(when="end")
def landscape(look: Look) -> Landscape:
    """The loss on a random plane through the weights (Figs. 5 and 9)."""
    return landscape_of(look.private.model, look.loss, look.generator, reach=REACH, points=POINTS)


@diagnostic(when="end", needs_start=True)
def interpolation(look: Look) -> Any:
    """The loss on the line from the run's first weights (0) to its last (1) (Fig. 11)."""
    if look.start is None:
        return Undefined("the run's first weights were not kept")
    # The function starts from the model, which is at the end.
    losses = losses_between(
        look.private.model, look.start, look.loss, [1 - place for place in POSITIONS]
    )
    return {"positions": list(POSITIONS), "losses": losses}


def largest_eigenvalue(look: Look, members: Tensor | None) -> Number:
    """Of the Hessian of some records' mean loss, or of all records'."""
    ends = spectrum_of(look.hessian(members), look.generator, count=1, steps=LANCZOS_STEPS)
    return ends if isinstance(ends, Undefined) else ends.largest[0]
