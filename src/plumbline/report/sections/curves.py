"""Learning curves: accuracy and loss on the test records along the way."""

from __future__ import annotations

from plumbline.fairness import NOT_COVERED
from plumbline.formats import short
from plumbline.report import figures as f
from plumbline.report.measured import at, curve
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Part, Section, Tabs


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
    )


def _figure(study: Study, metric: str, group: str | None) -> Figure:
    path = ("overall", metric) if group is None else ("by_group", group, metric)
    scale = 100 if metric == "accuracy" else 1
    traces, rows = [], []
    for title in study.titles:
        runs = [run.metrics for run in study.runs[title]]

        def value(row: dict[str, object]) -> object:
            found = at(row, *path)
            return scale * found if isinstance(found, int | float) else None

        own = curve(runs, value)
        colour, dash = f.colour(study, title), f.dash(study, title)
        traces += f.line(title, own, colour, dash=dash, hover=".1f" if scale > 1 else ".3f")
        rows += [[title, f"{s:,}", short(m)] for s, m in zip(own.steps, own.mean, strict=True)]
    band = " Bands are the range over seeds." if study.seeds > 1 else ""
    whom = "the test records" if group is None else f"the test records of {group}"
    place = 0 if group is None else 1 + study.groups.index(group)
    return Figure(
        f"curves-{metric}-{place}",
        metric.capitalize(),
        f"{metric.capitalize()} on {whom} after each step, for each method.{band}",
        traces,
        {
            "xaxis": f.steps_axis(),
            "yaxis": f.axis("accuracy (%)" if metric == "accuracy" else "loss"),
        },
        Grid(["method", "step", metric], rows, caption=f"{metric.capitalize()} over steps"),
        f.method_keys(study, study.titles),
        wide=False,
    )
