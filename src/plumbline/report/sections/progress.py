"""Training loss and gradient length of each group along the way (paper 004, Figs. 3, 8 to 10)."""

from __future__ import annotations

from plumbline.diagnostics import NOT_COVERED
from plumbline.report import figures as f
from plumbline.report.measured import at, curve
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

_SHOWN = {
    "loss": ("Training loss", "The loss on the probed training records"),
    "gradient_norm": ("Length of the mean gradient", "The norm of the mean gradient"),
}


def section(study: Study) -> Section | None:
    """Two figures for each method."""
    titles = study.measured("progress")
    if not titles:
        return None
    panels: dict[str, list[Part]] = {
        title: [_figure(study, title, name) for name in _SHOWN] for title in titles
    }
    return Section(
        "progress",
        "What training sees of each group",
        "A group whose loss stays high, or whose gradient stays long, is being left behind.",
        [Tabs("Method", panels)],
        NOT_COVERED,
    )


def _figure(study: Study, title: str, name: str) -> Figure:
    shown, sentence = _SHOWN[name]
    readings = [run.readings for run in study.runs[title]]
    lines: dict[str, tuple[tuple[str, ...], str]] = {
        "all records": (("progress", name), "@text"),
        **{
            group: (("progress", f"{name}_by_group", group), f.group_colour(place))
            for place, group in enumerate(study.groups)
        },
    }
    traces, rows = [], []
    for whose, (path, tint) in lines.items():
        own = curve(readings, lambda row, path=path: at(row, *path))  # type: ignore[misc]
        traces += f.line(whose, own, tint, hover=".3f")
        rows += [[whose, f"{s:,}", f.short(m)] for s, m in zip(own.steps, own.mean, strict=True)]
    return Figure(
        f"progress-{name.replace('_', '-')}-{study.titles.index(title)}",
        shown,
        f"{sentence} of each group after each step, with {title}.",
        traces,
        {"xaxis": f.steps_axis(), "yaxis": f.axis(shown.lower(), rangemode="tozero")},
        Grid(["records", "step", shown.lower()], rows, caption=f"{shown} over steps"),
        [Key(whose, tint, "line") for whose, (_, tint) in lines.items()],
        wide=False,
    )
