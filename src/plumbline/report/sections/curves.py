"""Learning curves: accuracy and loss on the test records along the way."""

from __future__ import annotations

from plumbline.fairness import NOT_COVERED
from plumbline.fairness.metrics import AUC, LOSS
from plumbline.report import figures as f
from plumbline.report.curve_figures import of_methods, over_steps
from plumbline.report.learning import in_order
from plumbline.report.measured import at
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Part, Section, Tabs


def section(study: Study) -> Section | None:
    """The main metric and the loss over steps, of all records and of each group."""
    if not any(run.metrics for runs in study.runs.values() for run in runs):
        return None
    panels: dict[str, list[Part]] = {
        name: [_figure(study, metric, group) for metric in _drawn(study)]
        for name, group in {"All records": None, **{g: g for g in study.groups}}.items()
    }
    return Section(
        "curves",
        "Learning curves",
        "How the metrics on the test records change along training.",
        [Tabs("Records", panels)],
        NOT_COVERED,
        "Measured on the test records every few steps. A curve that still rises at the end says "
        "that the run was too short or its learning rate too small for it.",
    )


def _drawn(study: Study) -> list[str]:
    return [name for name in in_order(study) if name in (study.main, AUC, LOSS)]


def _figure(study: Study, metric: str, group: str | None) -> Figure:
    path = ("overall", metric) if group is None else ("by_group", group, metric)
    shown = study.metrics[metric]
    scale = shown.scale

    def value(row: dict[str, object]) -> object:
        found = at(row, *path)
        return scale * found if isinstance(found, int | float) else None

    each = "" if study.single else ", for each method"
    band = " Bands are the range over seeds." if study.seeds > 1 else ""
    whom = "the test records" if group is None else f"the test records of {group}"
    place = 0 if group is None else 1 + study.groups.index(group)
    return over_steps(
        f"curves-{metric}-{place}",
        shown.title,
        f"{shown.title} on {whom} along training{each}.{band}",
        of_methods(study, study.titles, value, "metrics"),
        f.axis(shown.axis),
        what=metric,
        hover=".1f" if scale > 1 else ".3f",
    )
