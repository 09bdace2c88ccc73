"""The few numbers that a page begins with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from plumbline.experiments.together import Total
from plumbline.fairness.evaluating import BY_NAME, written
from plumbline.fairness.metrics import AUC
from plumbline.fairness.regression import BASELINE_RMSE, R2, RMSE
from plumbline.fairness.remarks import baseline_of, largest_gap
from plumbline.formats import amount, finite, percent, points, tiny
from plumbline.mechanism.rounding import rounded_up
from plumbline.report.choosing import best, better_settings, reference
from plumbline.report.learning import mean_of, telling
from plumbline.report.reading import Study


class Tile(NamedTuple):
    """A number, what it is, what stands below it, and whether epsilon covers it."""

    name: str
    value: str
    beside: str
    covered: bool = True


def tiles_of(study: Study) -> list[Tile]:
    """Utility against the baseline, epsilon, the largest gap, and what all runs have cost."""
    return [*(_of_run(study) if study.single else _of_comparison(study)), *_totals(study)]


def _of_run(study: Study) -> Iterator[Tile]:
    title = study.titles[0]
    seeds = study.row(title).seeds
    overall = {name: one.mean for name, one in seeds.overall.items()}
    if study.main == R2:
        base = f"the mean for all: {written(BASELINE_RMSE, overall[BASELINE_RMSE])}"
        yield Tile("error (RMSE)", written(RMSE, overall[RMSE]), base, covered=False)
    else:
        base = f"one class for all: {percent(baseline_of(seeds.overall))}"
        utility = [Tile("accuracy", percent(overall[study.main]), base, covered=False)]
        if finite(overall.get(AUC)) is not None:
            auc = Tile("AUC", written(AUC, overall[AUC]), "0.5 is guessing", covered=False)
            utility.insert(0 if telling(study) == AUC else 1, auc)
        yield from utility
    yield _privacy(study)
    if study.groups and (gap := largest_gap(seeds)) is not None:
        name, size, between = gap
        in_points = BY_NAME[name].name != RMSE
        value = f"{points(size)}" if in_points else amount(size)
        what = f"points of {BY_NAME[name].title}" if in_points else BY_NAME[name].title
        yield Tile("groups apart by", value, f"{what} ({between})", covered=False)


def _of_comparison(study: Study) -> Iterator[Tile]:
    first, metric = reference(study), telling(study)
    if first is not None:
        yield _privacy(study)
    base = baseline_of(study.table.rows[0].seeds.overall)
    least = "0.5 is guessing" if metric == AUC else f"one class for all: {percent(base)}"
    what = f"{BY_NAME[metric].title}, "
    free = next((title for title in study.titles if study.is_free(title)), None)
    if free is not None and (value := mean_of(study, free, metric)) is not None:
        beside = f"{what}where {least}" if metric == AUC else least if base else free
        yield Tile("without privacy", written(metric, value), beside, covered=False)
    elif metric == AUC:
        yield Tile("guessing", written(AUC, 0.5), "AUC")
    elif base:
        yield Tile("baseline", percent(base), "one class for all", covered=False)
    title = best(study)
    value = None if title is None else mean_of(study, title, metric)
    if title is not None and value is not None:
        beside = title if metric == study.main else f"{what}{title}"
        yield Tile("best private", written(metric, value), beside, covered=False)
    if first is None:
        return
    shown = better_settings(study, first) or first
    if study.groups and (cost := study.row(shown).cost) is not None:
        gap = finite(cost.privacy_cost.gap.value)
        if gap is not None:
            beside = f"points of {study.main_title} lost, {shown}"
            yield Tile("groups apart by", points(gap), beside, covered=False)


def _privacy(study: Study) -> Tile:
    titles = study.private or study.titles
    epsilon = max(study.row(title).epsilon for title in titles)
    shown = rounded_up(epsilon, infinite="∞")
    return Tile("privacy", f"ε {shown}", f"at δ {tiny(study.recipe.budget.delta)}")


def _totals(study: Study) -> Iterator[Tile]:
    """What the released models cost together, and everything that was run."""
    found = study.totals
    released, everything = found.released, found.everything
    if found.shared:
        value = _bound(released) if released.runs else "none"
        models = "1 model" if released.runs == 1 else f"{released.runs:,} models together"
        beside = models if released.runs else "exported, or marked as released"
        limit = f"; the limit is ε {found.limit[0]:g}" if found.limit else ""
        yield Tile("released models", value, f"{beside}{limit}")
    if found.shared or everything.private > 1 or everything.unbounded:
        beside = f"{everything.counted} {found.where}"
        if everything.unbounded:
            beside += f"; {len(everything.unbounded):,} without privacy"
        if everything.seeded:
            beside += f"; {everything.seeded:,} seeded"
        if not everything.bounded and everything.rest and math.isfinite(everything.epsilon):
            beside += f"; the others ε {rounded_up(everything.epsilon)}"
        yield Tile("everything together", _bound(everything), beside)


def _bound(total: Total) -> str:
    return f"ε {rounded_up(total.epsilon)}" if total.bounded else "no bound"
