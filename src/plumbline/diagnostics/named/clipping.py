"""What clipping does to the mean gradient, and how long and spread the clipped gradients are.

Norms, cosines and projections are counted, not listed by record: figures need no more, and a file
that is passed on then says less about single records.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from plumbline.diagnostics.base import Sample, norm
from plumbline.diagnostics.bias import (
    BiasByGroup,
    ErrorParts,
    error_parts,
)
from plumbline.diagnostics.bias import bias as bias_of
from plumbline.diagnostics.bias import bias_by_batch_size as bias_at_sizes
from plumbline.diagnostics.look import Look, diagnostic
from plumbline.diagnostics.norms import norms as norms_of
from plumbline.diagnostics.symmetry import projections
from plumbline.diagnostics.symmetry import symmetry as symmetry_of
from plumbline.results import Number, Undefined, to_json

BINS = 24
PLANE_BINS = 19
BATCHES = 8


@diagnostic
def bias(look: Look) -> BiasByGroup:
    """The bias of clipping on the whole sample, and on each group's own records."""
    groups = {name: bias_of(look.sample.of(own)) for name, own in look.groups.items()}
    return BiasByGroup(**vars(bias_of(look.sample)), by_group=groups)


@diagnostic
def bias_by_batch_size(look: Look) -> dict[str, Any]:
    """The bias in batches of 4, 16, 64... records (Bias-Aware Minimisation, Figs. 5 and 6)."""
    count = len(look.units)
    sizes = [4**power for power in range(1, 16) if 4**power < count] + [count]
    found = bias_at_sizes(look.sample, sizes, look.generator, BATCHES)
    return {str(one.size): one for one in found}


@diagnostic
def errors(look: Look) -> ErrorParts:
    """The expected squared error of a released gradient: clipping, noise, sampling."""
    return error_parts(look.sample, look.private.plan.sampling_rate)


@diagnostic
def norms(look: Look) -> dict[str, Any]:
    """The norms' quantiles, and a histogram on a logarithmic scale, overall and by group."""
    sample = look.sample
    found = norms_of(sample)
    used = sample.finite.cpu()
    # The smallest positive norms can be rounding; below a millionth of the largest is one bin.
    values = sample.norms.double().cpu()
    top = float(values[used].max()) if bool(used.any()) else 0.0
    edges = torch.zeros(0)
    counts: dict[str, list[int]] = {}
    if top > 0:
        low = max(float(values[used].clamp(min=1e-6 * top).min()), 1e-300)
        ends = math.log10(low / 1.01), math.log10(top * 1.01)
        edges = torch.logspace(*ends, BINS + 1, dtype=torch.float64)
        members = {} if sample.in_buckets else look.groups
        for name, own in {"all": used, **members}.items():
            counts[name] = _counts(values[used & own.cpu()].clamp(min=low), edges)
    return {
        **to_json(found),
        "by_group": look.named(found.by_group),
        "clipped_by_group": look.named(found.clipped_by_group),
        "clip": sample.clipping.threshold,
        "histogram": {"edges": edges, "counts": counts},
    }


@diagnostic
def symmetry(look: Look) -> dict[str, Any]:
    """Symmetry in numbers, a histogram of cosines, and the gradients' density in a random plane."""
    facts = vars(symmetry_of(look.sample)) | {"plane": _plane(look)}
    edges = torch.linspace(-1, 1, BINS + 1, dtype=torch.float64)
    return facts | {"cosines": {"edges": edges, "counts": _counts(_cosines(look.sample), edges)}}


@diagnostic
def progress(look: Look) -> dict[str, Any]:
    """The training loss and the length of the plain mean gradient, by group too.

    From Gradient Misalignment.
    """
    plain = look.sample.plain
    groups = {name: look.sample.of(own).plain for name, own in look.groups.items()}
    return {
        "loss": _mean_loss(plain),
        "gradient_norm": _length(plain),
        "loss_by_group": {name: _mean_loss(own) for name, own in groups.items()},
        "gradient_norm_by_group": {name: _length(own) for name, own in groups.items()},
    }


def _mean_loss(plain: Sample) -> Number:
    losses = plain.gradients.losses.detach().double().cpu()[plain.finite.cpu()]
    if not len(losses):
        return Undefined("no record has a finite loss")
    return float(losses.mean() if plain.drawn is None else losses.sum() / plain.drawn)


def _length(plain: Sample) -> Number:
    return norm(plain.mean) if plain.nothing is None else plain.nothing


def _cosines(sample: Sample) -> Tensor:
    """Of each record's gradient with the mean, ``[B]``; also where nothing is clipped."""
    moving = sample.finite & (sample.norms > 0)
    size = norm(sample.mean)
    if not size:
        return torch.zeros(0, dtype=torch.float64)
    lengths = sample.norms[moving].double() * size
    return (sample.along[moving] / lengths).clamp(-1, 1).cpu()


def _plane(look: Look) -> Any:
    """Counts on a grid about the mean of the projected gradients.

    From Geometric Perspective, Figs. 1 and 2.
    """
    if (nothing := look.sample.nothing) is not None:
        return nothing
    points = projections(look.sample, look.generator, 1)[0].double().cpu()
    mean = points.mean(0)
    # The farthest few are left out: they would make the rest one dot.
    reach = float((points - mean).abs().amax(1).quantile(0.97)) or 1.0
    grid = torch.linspace(-reach, reach, PLANE_BINS + 1, dtype=torch.float64)
    counts, _ = torch.histogramdd(points - mean, [grid, grid])
    return {
        "steps": (grid[:-1] + grid[1:]) / 2,
        "counts": counts.int(),  # [i][j]: i along the first axis
        "true_gradient": mean,
        "outside": len(points) - int(counts.sum()),
    }


def _counts(values: Tensor, edges: Tensor) -> list[int]:
    """How many of the values lie between each two edges."""
    if not len(values):
        return [0] * (len(edges) - 1)
    counts: list[int] = torch.histogram(values, edges)[0].int().tolist()
    return counts
