"""Tables: methods x seeds of a recipe, every metric overall and by group.

Accuracies and privacy costs are in points. Rows whose origin is "tuned" are the tuned column.
Diagnostics that a recipe's probe reads along the way are means over the readings (figures).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plumbline.experiments.comparing import ComparisonTable, MethodRow, compare
from plumbline.experiments.files import read_rows
from plumbline.experiments.probing import DIAGNOSTICS
from plumbline.experiments.recipe import Recipe
from plumbline.experiments.studies.base import Job, Measured, Measurements, study
from plumbline.fairness import Estimate, Undefined

_SHARES = ("accuracy", "balanced accuracy")


@study("comparison")
def comparison(job: Job) -> Measurements:
    """The table of a recipe.

    ``pair`` beside its fields names the two groups whose costs are compared, where there are more.
    """
    fields = {key: value for key, value in job.settings.items() if key != "pair"}
    table = compare(Recipe.of(fields), job.folder, workers=job.workers, on_progress=job.on_progress)
    return measurements(table, job.folder, job.settings.get("pair"))


def measurements(
    table: ComparisonTable, folder: Path, pair: Sequence[str] | None = None
) -> Measurements:
    """Every number of a table, by row, metric and group."""
    columns: dict[bool, dict[str, Measured]] = {True: {}, False: {}}
    for method, row in zip(table.recipe.methods, table.rows, strict=True):
        label = method.label or method.name
        column = columns[method.origin == "tuned"]
        for key, value in (*_metrics(row), *_costs(row, pair), *_probed(row, folder)):
            column[f"{label} / {key}"] = value
    return Measurements(columns[False], columns[True])


def _metrics(row: MethodRow) -> Iterator[tuple[str, Measured]]:
    groups: dict[str, Mapping[str, Estimate]] = {"": row.seeds.overall}
    groups |= {f" / {group}": metrics for group, metrics in row.seeds.by_group.items()}
    for group, metrics in groups.items():
        for metric in ("accuracy", "loss"):
            yield f"{metric}{group}", _measured(metrics[metric], row, metric in _SHARES)


def _costs(row: MethodRow, pair: Sequence[str] | None) -> Iterator[tuple[str, Measured]]:
    if row.cost is None:
        return
    for name, cost, share in (
        ("privacy cost", row.cost.privacy_cost, True),
        ("excessive risk", row.cost.excessive_risk, False),
    ):
        for group, estimate in cost.by_group.items():
            yield f"{name} / {group}", _measured(estimate, row, share)
        groups = tuple(cost.by_group) if pair is None else tuple(pair)
        if len(groups) == 2:
            yield f"{name} gap", _measured(cost.between(*groups), row, share)


def _measured(estimate: Estimate, row: MethodRow, share: bool) -> Measured:
    scale = 100.0 if share else 1.0
    mean, error = estimate.mean, estimate.standard_error
    return Measured(
        math.nan if isinstance(mean, Undefined) else scale * mean,
        math.nan if isinstance(error, Undefined) else scale * error,
        row.folders,
    )


def _probed(row: MethodRow, folder: Path) -> Iterator[tuple[str, Measured]]:
    """Means over the readings of each run, then over runs."""
    by_run = [means for run in row.folders if (means := _means(folder / run))]
    for key in by_run[0] if by_run else ():
        yield key, Measured.of([run[key] for run in by_run if key in run], row.folders)


def _means(run: Path) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for row in read_rows(run / DIAGNOSTICS):
        for key, value in _numbers(row):
            sums.setdefault(key, []).append(value)
    return {key: sum(values) / len(values) for key, values in sums.items()}


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number within a reading, by its path; lists, such as histograms, are left out."""
    if isinstance(value, bool) or path in ("step", "epsilon", "records"):
        return
    if isinstance(value, int | float):
        yield path, float(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path} / {key}" if path else str(key))
