"""What a run measures of clipping along the way, and once at its end, as rows of plain values.

A fixed sample of training records, chosen by the run's seed, is looked at every few steps. Norms,
cosines and projections are kept as histograms, not as one value per record: the figures need no
more, and a file that is passed on then says less about single records. Looking leaves no trace:
random numbers, weights and modes are as if nobody had looked. Nothing here is covered by epsilon,
and the first line of the file says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plumbline.data import Splits
from plumbline.diagnostics import (
    MEASUREMENTS,
    NOT_COVERED,
    Hessian,
    Sample,
    Undefined,
    bias,
    density,
    excessive_risk,
    landscape,
    norms,
    projections,
    spectrum,
    symmetry,
    to_json,
    trace,
)
from plumbline.experiments.files import append_row, kept_rows, write_json
from plumbline.experiments.recipe import ProbePart
from plumbline.experiments.run_spec import RunSpec
from plumbline.training import Private
from plumbline.training.fitting import StepInfo
from plumbline.training.without_trace import evaluating, no_trace

DIAGNOSTICS, FINAL_FILE = "diagnostics.jsonl", "final.json"
BINS = 24
PLANE_BINS = 19
LANCZOS_STEPS, TRACE_PROBES = 16, 8
FINAL_RECORDS, FINAL_STEPS, LANDSCAPE_POINTS, LANDSCAPE_REACH = 256, 30, 15, 0.75


@dataclass(frozen=True)
class Look:
    """What a measurement sees.

    Attributes:
        private: The run.
        sample: The gradients of the records, with their groups.
        records: The records, as the loss sees them.
        groups: Which records each group has, ``[B]`` bool, by the group's name; groups that have
            none are left out.
        seed: For random vectors; the same at every reading, so that readings can be compared.
    """

    private: Private
    sample: Sample
    records: Any
    groups: Mapping[str, Tensor]
    seed: int

    @property
    def generator(self) -> torch.Generator:
        """A generator that starts in the same state at every reading."""
        return torch.Generator().manual_seed(self.seed)

    def named(self, by_value: Mapping[int, Any]) -> dict[str, Any]:
        """What was found by the groups' values, by their names."""
        features = self.sample.groups
        if features is None:
            return {}
        values = {name: int(features[own][0]) for name, own in self.groups.items()}
        return {name: by_value[value] for name, value in values.items() if value in by_value}

    def hessian(self, members: Tensor | None = None) -> Hessian:
        """The Hessian of the mean loss of some records, or of all."""
        model, loss = self.private.model, self.private.loss
        keep = slice(None) if members is None else members.nonzero()[:, 0]
        return Hessian(model, lambda: loss(model, self.records)[keep])


Measure = Callable[[Look], Any]


def check_names(part: ProbePart) -> None:
    """Refuses names that nothing is measured under.

    Raises:
        ValueError: Naming what is allowed.
    """
    for field, given, allowed in (("measure", part.measure, ALONG), ("final", part.final, FINAL)):
        unknown = [name for name in given if name not in allowed]
        if unknown:
            raise ValueError(
                f"probe.{field} has {unknown[0]!r}; what can be measured there is "
                f"{', '.join(allowed)}."
            )


class Probing:
    """A callback of ``private.fit`` that appends readings to a run's ``diagnostics.jsonl``.

    Args:
        part: What to measure, how often, on how many records.
        index: The numbers of the training records to measure on, ``[B]``.
        features: Their groups, ``[B]``, if there are groups.
        names: The groups' names, by value of ``features``.
        seed: For the random vectors of some measurements.
        folder: The run's folder.
    """

    def __init__(
        self,
        part: ProbePart,
        index: Tensor,
        features: Tensor | None,
        names: Sequence[str],
        seed: int,
        folder: Path,
    ) -> None:
        check_names(part)
        self._part, self._index, self._features = part, index, features
        self._names, self._seed, self._folder = tuple(names), seed, folder

    @classmethod
    def of(cls, spec: RunSpec, private: Private, splits: Splits, folder: Path) -> Probing:
        """The probing that a run's recipe asks for, with what an earlier session has recorded.

        Rows beyond the checkpoint that the run goes on from are dropped: they will come again.
        """
        part = spec.recipe.probe
        if part is None:
            raise ValueError("The recipe has no part 'probe', and so nothing to measure.")
        order = torch.randperm(
            len(splits.train), generator=torch.Generator().manual_seed(spec.seed)
        )
        index = order[: part.records].sort().values
        features = splits.train.sensitive_features
        own = None if features is None else features[index]
        made = cls(part, index, own, splits.groups, spec.seed, folder)
        kept_rows(folder / DIAGNOSTICS, private.steps_done, head=[{"label": NOT_COVERED}])
        return made

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Takes a reading where one is due: every few steps, and after the last."""
        if info.step % self._part.every and info.step != info.steps:
            return
        row: dict[str, Any] = {
            "step": info.step,
            "epsilon": to_json(info.epsilon),
            "records": len(self._index),
        }
        with no_trace(private.model):
            look = self._look(private, self._index, self._features)
            for name in self._part.measure:
                row[name] = to_json(ALONG[name](look))
        append_row(self._folder / DIAGNOSTICS, row)

    def finish(self, private: Private) -> None:
        """Measures what is measured once, on fewer records, and writes ``final.json``."""
        if not self._part.final:
            return
        found: dict[str, Any] = {"label": NOT_COVERED}
        features = None if self._features is None else self._features[:FINAL_RECORDS]
        with no_trace(private.model), evaluating(private.model):
            look = self._look(private, self._index[:FINAL_RECORDS], features)
            found["records"] = look.sample.records
            for name in self._part.final:
                found[name] = to_json(FINAL[name](look))
        write_json(self._folder / FINAL_FILE, found)

    def _look(self, private: Private, index: Tensor, features: Tensor | None) -> Look:
        records = private.fetch(index)
        method: Any = private.method  # training's own word for it does not know of clipping
        sample = Sample.take(
            private.model,
            lambda: private.loss(private.model, records),
            method.clipping,
            noise_multiplier=private.plan.noise_multiplier,
            expected_size=private.plan.expected_batch_size,
            groups=features,
        )
        groups = {}
        if features is not None:
            members = {name: features == value for value, name in enumerate(self._names)}
            groups = {name: own for name, own in members.items() if bool(own.any())}
        return Look(private, sample, records, groups, self._seed)


def _bias(look: Look) -> Any:
    """The bias of the whole sample, and of each group's own records."""
    groups = {name: bias(look.sample.of(own)) for name, own in look.groups.items()}
    return {**to_json(bias(look.sample)), "by_group": to_json(groups)}


def _norms(look: Look) -> Any:
    """The norms' quantiles, and a histogram on a logarithmic scale, overall and by group."""
    found = norms(look.sample)
    clip = look.sample.clipping.sensitivity
    used = look.sample.finite
    # The smallest positive norms can be rounding; below a millionth of the largest is one bin.
    values = look.sample.norms[used].double().cpu()
    top = float(values.max()) if len(values) else 0.0
    edges = torch.zeros(0)
    counts: dict[str, list[int]] = {}
    if top > 0:
        low = max(float(values.clamp(min=1e-6 * top).min()), 1e-300)
        edges = torch.logspace(
            math.log10(low / 1.01), math.log10(top * 1.01), BINS + 1, dtype=torch.float64
        )
        clamped = look.sample.norms.double().cpu().clamp(min=low)
        counts["all"] = _counts(clamped[used.cpu()], edges)
        for name, own in look.groups.items():
            counts[name] = _counts(clamped[used.cpu() & own.cpu()], edges)
    return {
        **to_json(found),
        "by_group": to_json(look.named(found.by_group)),
        "clipped_by_group": to_json(look.named(found.clipped_by_group)),
        "clip": None if math.isinf(clip) else clip,
        "histogram": {"edges": edges.tolist(), "counts": counts},
    }


def _symmetry(look: Look) -> Any:
    """Symmetry in numbers, a histogram of cosines, and the gradients' density in a random plane."""
    found = symmetry(look.sample)
    facts = {name: value for name, value in vars(found).items() if name != "cosines"}
    edges = torch.linspace(-1, 1, BINS + 1, dtype=torch.float64)
    cosines = {"edges": edges.tolist(), "counts": _counts(_cosines(look.sample), edges)}
    return {**to_json(facts), "cosines": cosines, "plane": _plane(look)}


def _cosines(sample: Sample) -> Tensor:
    """Of each record's gradient with the mean, ``[B]``; also where nothing is clipped."""
    moving = sample.finite & (sample.norms > 0)
    size = math.sqrt(float(sum(g.double().square().sum() for g in sample.mean.values())))
    if not size:
        return torch.zeros(0, dtype=torch.float64)
    lengths = sample.norms[moving].double() * size
    return (sample.along[moving] / lengths).clamp(-1, 1).cpu()


def _plane(look: Look) -> Any:
    """Counts on a grid about the mean of the projected gradients (paper 001, Figs. 1 and 2)."""
    if (nothing := look.sample.nothing) is not None:
        return nothing
    points = projections(look.sample, look.generator, 1)[0].double().cpu()
    mean = points.mean(0)
    # The farthest few are left out: they would make the rest one dot.
    reach = float((points - mean).abs().amax(1).quantile(0.97)) or 1.0
    grid = torch.linspace(-reach, reach, PLANE_BINS + 1, dtype=torch.float64)
    counts, _ = torch.histogramdd(points - mean, [grid, grid])
    centre = ((grid[:-1] + grid[1:]) / 2).tolist()
    return {
        "steps": centre,
        "counts": counts.int().tolist(),  # [i][j]: i along the first axis
        "true_gradient": mean.tolist(),
        "outside": len(points) - int(counts.sum()),
    }


def _progress(look: Look) -> Any:
    """The training loss and the length of the mean gradient, overall and by group (paper 004)."""
    sample = look.sample
    losses = sample.gradients.losses.detach().double().cpu()
    finite = sample.finite.cpu()

    def mean(own: Tensor) -> float | Undefined:
        kept = losses[own.cpu() & finite]
        return float(kept.mean()) if len(kept) else Undefined("no record has a finite loss")

    whole = torch.ones_like(finite)
    lengths = {name: bias(sample.of(own)).gradient_norm for name, own in look.groups.items()}
    return {
        "loss": mean(whole),
        "gradient_norm": bias(sample).gradient_norm,
        "loss_by_group": {name: mean(own) for name, own in look.groups.items()},
        "gradient_norm_by_group": lengths,
    }


def _excessive_risk(look: Look) -> Any:
    """Each group's expected change of loss in a step, by cause (paper 004, Props. 1 and 2)."""
    rate = float(look.private.optimizer.param_groups[0]["lr"])
    found: dict[str, Any] = {}
    for name, own in (look.groups or {"all": torch.ones_like(look.sample.finite)}).items():
        hessian = look.hessian(own)
        estimate = trace(hessian, look.generator, probes=TRACE_PROBES)
        known = None if isinstance(estimate, Undefined) else estimate
        found[name] = excessive_risk(hessian, [look.sample], rate, known)
    return found


def _hessian(look: Look) -> Any:
    """The largest eigenvalue of the Hessian of each group's mean loss, and of all records'."""
    wanted: dict[str, Tensor | None] = {"all": None, **look.groups}
    found: dict[str, Any] = {}
    for name, own in wanted.items():
        ends = spectrum(look.hessian(own), look.generator, count=1, steps=LANCZOS_STEPS)
        found[name] = ends if isinstance(ends, Undefined) else ends.largest[0]
    return found


def _of_diagnostics(name: str) -> Measure:
    return lambda look: MEASUREMENTS[name](look.sample, look.private.released)


def _landscape(look: Look) -> Any:
    private, weight = look.private, max(1, look.sample.records)

    def loss() -> float:
        with torch.no_grad():
            return float(private.loss(private.model, look.records).double().sum()) / weight

    return landscape(
        private.model, loss, look.generator, reach=LANDSCAPE_REACH, points=LANDSCAPE_POINTS
    )


ALONG: dict[str, Measure] = {
    **{name: _of_diagnostics(name) for name in MEASUREMENTS},
    "bias": _bias,
    "norms": _norms,
    "symmetry": _symmetry,
    "progress": _progress,
    "excessive_risk": _excessive_risk,
    "hessian": _hessian,
}
"""What can be measured along a run, by name."""

FINAL: dict[str, Measure] = {
    "spectrum": lambda look: spectrum(look.hessian(), look.generator, count=10, steps=FINAL_STEPS),
    "density": lambda look: density(look.hessian(), look.generator, steps=FINAL_STEPS),
    "landscape": _landscape,
}
"""What can be measured once, after the last step, by name."""


def _counts(values: Tensor, edges: Tensor) -> list[int]:
    """How many of the values lie between each two edges."""
    if not len(values):
        return [0] * (len(edges) - 1)
    counts: list[int] = torch.histogram(values, edges)[0].int().tolist()
    return counts
