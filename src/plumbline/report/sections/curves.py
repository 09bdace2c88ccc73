"""Learning curves: accuracy and loss on the test records along the way."""

from __future__ import annotations

from plumbline.fairness import NOT_COVERED
from plumbline.report import figures as f
from plumbline.report.curve_figures import of_methods, over_steps
from plumbline.report.measured import at
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Part, Section, Tabs


def section(study: Study) -> Section | None:
    """Accuracy and loss over steps, of all records and of each group."""
    if not any(run.metrics for runs in study.runs.values() for run in runs):
        return None
    panels: dict[str, list[Part]] = {
        name: [_figure(study, metric, group) for metric in ("accuracy", "loss")]
        for name, group in {"All records": None, **{g: g for g in study.groups}}.items()
    }
    return Section(
        "curves",
        "Learning curves",
        "How accuracy and loss on the test records change along training.",
        [Tabs("Records", panels)],
        NOT_COVERED,
        "Measured on the test records every few steps. A curve that still rises at the end says "
        "that the run was too short or its learning rate too small for it.",
    )


def _figure(study: Study, metric: str, group: str | None) -> Figure:
    path = ("overall", metric) if group is None else ("by_group", group, metric)
    scale = 100 if metric == "accuracy" else 1

    def value(row: dict[str, object]) -> object:
        found = at(row, *path)
        return scale * found if isinstance(found, int | float) else None

    band = " Bands are the range over seeds." if study.seeds > 1 else ""
    whom = "the test records" if group is None else f"the test records of {group}"
    place = 0 if group is None else 1 + study.groups.index(group)
    return over_steps(
        f"curves-{metric}-{place}",
        metric.capitalize(),
        f"{metric.capitalize()} on {whom} after each step, for each method.{band}",
        of_methods(study, study.titles, value, "metrics"),
        f.axis("accuracy (%)" if metric == "accuracy" else "loss"),
        what=metric,
        hover=".1f" if scale > 1 else ".3f",
    )
