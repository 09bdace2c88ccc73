"""Tables: methods x seeds of a recipe, every metric overall and by group.

Accuracies and privacy costs are in points. Rows whose origin is "tuned" are the tuned column.
Diagnostics that a recipe's probe reads along the way are means over the readings (figures); what
was read first and last is kept under the same name with ", first" and ", last".
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
from plumbline.experiments.settings import require_known
from plumbline.experiments.studies.base import Job, Measured, Measurements, study
from plumbline.experiments.studies.larger_class import LARGER_CLASS, larger_class
from plumbline.fairness import Estimate, Number, Undefined
from plumbline.results import minus

BESIDE = ("pair", "reference")
"""What a comparison's settings have beside the fields of a recipe."""
BEST = ", best"
FIRST, LAST = ", first", ", last"


@study("comparison")
def comparison(job: Job) -> Measurements:
    """The table of a recipe.

    Beside its fields, ``pair`` names the two groups whose costs are compared, where there are more,
    and ``reference`` the label of the rows whose errors the other rows reduce.
    """
    recipe = recipe_of(job.settings)
    table = compare(recipe, job.folder, workers=job.workers, on_progress=job.on_progress)
    found = measurements(table, job.folder, job.settings.get("pair"))
    found.paper.update(best_rows(job.settings, found.paper))
    return found


def best_rows(settings: Mapping[str, Any], found: Mapping[str, Measured]) -> dict[str, Measured]:
    """The best row of each sweep, and what it reduces the reference's errors by."""
    recipe = recipe_of(settings)
    made = _best(recipe, found)
    if (reference := settings.get("reference")) is not None:
        require_known("row called", reference, [row.base for row in recipe.methods])
        made |= _error_reductions(reference, made)
    return made


def recipe_of(settings: Mapping[str, Any]) -> Recipe:
    """The recipe in a comparison's settings."""
    return Recipe.of({key: value for key, value in settings.items() if key not in BESIDE})


def measurements(
    table: ComparisonTable, folder: Path, pair: Sequence[str] | None = None
) -> Measurements:
    """Every number of a table, by row, metric and group."""
    columns: dict[bool, dict[str, Measured]] = {True: {}, False: {}}
    seeds = table.recipe.seeds
    for method, row in zip(table.recipe.rows, table.rows, strict=True):
        label = f"{method.base}{method.place}"
        column = columns[method.origin == "tuned"]
        for key, values in (*_metrics(row), *_costs(row, pair), *_probed(row, folder)):
            known = [value for value in values if not isinstance(value, Undefined)]
            if len(known) == len(seeds):
                column[f"{label} / {key}"] = Measured.of(known, row.folders, seeds)
            else:
                column[f"{label} / {key}"] = Measured(math.nan, folders=row.folders)
    for key, shares in larger_class(table.recipe).items():
        columns[False][f"{LARGER_CLASS} / {key}"] = Measured.of(shares, seeds=seeds)
    return Measurements(columns[False], columns[True], aim=_aim(table.recipe))


def _best(recipe: Recipe, found: Mapping[str, Measured]) -> dict[str, Measured]:
    """For each label and epsilon, the numbers of the row of a sweep with the highest accuracy.

    It is chosen by the mean over seeds on the test part, for all labels alike.
    """
    rows: dict[str, list[str]] = {}
    for row in recipe.rows:
        if row.origin != "tuned":
            epsilon = "" if row.epsilon is None else f", epsilon {row.epsilon:g}"
            rows.setdefault(f"{row.base}{BEST}{epsilon}", []).append(f"{row.base}{row.place}")
    made: dict[str, Measured] = {}
    for name, own in rows.items():
        means = {row: found[key].mean for row in own if (key := f"{row} / accuracy") in found}
        known = {row: mean for row, mean in means.items() if not math.isnan(mean)}
        if known:
            best = max(known, key=known.__getitem__)
            head = f"{best} / "
            made |= {
                f"{name} / {k.removeprefix(head)}": v
                for k, v in found.items()
                if k.startswith(head)
            }
    return made


def _error_reductions(reference: str, found: Mapping[str, Measured]) -> dict[str, Measured]:
    """By how many percent each best row reduces the reference's errors, in each seed.

    From Sharpness-Aware Training, Table 2 (ERR).
    """
    made = {}
    for key, one in found.items():
        label, _, rest = key.partition(BEST)
        if not rest.endswith(" / accuracy") or rest.count(" / ") > 1 or label == reference:
            continue
        other = found[f"{reference}{BEST}{rest}"]
        if 100 in other.by_seed.values():
            continue  # no errors to avoid
        made[key.removesuffix("accuracy") + "error reduction"] = Measured.of(
            [
                100 * (value - other.by_seed[seed]) / (100 - other.by_seed[seed])
                for seed, value in one.by_seed.items()
            ],
            one.folders,
            [int(seed) for seed in one.by_seed],
        )
    return made


def _aim(recipe: Recipe) -> str:
    return "loss" if "loss" in recipe.tune.objective else "accuracy"


def _metrics(row: MethodRow) -> Iterator[tuple[str, list[Number]]]:
    groups: dict[str, Mapping[str, Estimate]] = {"": row.seeds.overall}
    groups |= {f" / {group}": metrics for group, metrics in row.seeds.by_group.items()}
    for group, metrics in groups.items():
        for metric in ("accuracy", "loss"):
            yield f"{metric}{group}", _scaled(metrics[metric].per_run, metric == "accuracy")


def _costs(row: MethodRow, pair: Sequence[str] | None) -> Iterator[tuple[str, list[Number]]]:
    if row.cost is None:
        return
    for name, cost, share in (
        ("privacy cost", row.cost.privacy_cost, True),
        ("excessive risk", row.cost.excessive_risk, False),
    ):
        for group, estimate in cost.by_group.items():
            yield f"{name} / {group}", _scaled(estimate.per_run, share)
        groups = tuple(cost.by_group) if pair is None else tuple(pair)
        if len(groups) == 2:
            yield f"{name} gap", _scaled(gap_of(*(cost.by_group[one] for one in groups)), share)


def gap_of(first: Estimate, second: Estimate) -> list[Number]:
    """The difference of each run, with the sign that makes their mean the size of the gap."""
    pairs = zip(first.per_run, second.per_run, strict=True)
    signed = [minus(one, other) for one, other in pairs]
    known = [one for one in signed if not isinstance(one, Undefined)]
    return [one if isinstance(one, Undefined) or sum(known) >= 0 else -one for one in signed]


def _scaled(values: Sequence[Number], share: bool) -> list[Number]:
    scale = 100.0 if share else 1.0
    return [value if isinstance(value, Undefined) else scale * value for value in values]


def _probed(row: MethodRow, folder: Path) -> Iterator[tuple[str, list[Number]]]:
    """Means, firsts and lasts of the readings of each run; a run without any has no value."""
    by_run = [_readings(folder / run) for run in row.folders]
    missing = Undefined("the run has no such reading")
    for key in by_run[0]:
        yield key, [run.get(key, missing) for run in by_run]


def _readings(run: Path) -> dict[str, float]:
    along: dict[str, list[float]] = {}
    for row in read_rows(run / DIAGNOSTICS):
        for key, value in _numbers(row):
            along.setdefault(key, []).append(value)
    made = {key: sum(values) / len(values) for key, values in along.items()}
    for end, at in ((FIRST, 0), (LAST, -1)):
        made |= {f"{key}{end}": values[at] for key, values in along.items()}
    return made


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number within a reading, by its path; lists, such as histograms, are left out."""
    if isinstance(value, bool) or path in ("step", "epsilon", "records"):
        return
    if isinstance(value, int | float):
        yield path, float(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, f"{path} / {key}" if path else str(key))
