"""How long the records' gradients are, and where the clip bound cuts."""

from __future__ import annotations

import itertools
from typing import Any

from plumbline.diagnostics import NOT_COVERED
from plumbline.formats import finite, percent, short
from plumbline.report import figures as f
from plumbline.report.measured import Curve, at, curve
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs


def section(study: Study) -> Section | None:
    """A histogram and a fan over training for each method."""
    panels: dict[str, list[Part]] = {}
    for title in study.measured("norms"):
        drawn = [figure for figure in (_histogram(study, title), _fan(study, title)) if figure]
        if drawn:
            panels[title] = [*drawn]
    if not panels:
        return None
    return Section(
        "norms",
        "Gradient lengths and the clip line",
        "The gradients that the method clips: those longer than the clip line are scaled down "
        "further than the others; the further the lengths lie apart, the more that bends their "
        "mean.",
        [Tabs("Method", panels)],
        NOT_COVERED,
    )


def _histogram(study: Study, title: str) -> Figure | None:
    """The last reading of the first seed."""
    readings = [row for row in study.runs[title][0].readings if "norms" in row]
    if not readings:
        return None
    last = readings[-1]["norms"]
    edges = at(last, "histogram", "edges") or []
    counts: dict[str, list[int]] = at(last, "histogram", "counts") or {}
    if len(edges) < 2 or "all" not in counts:
        return None
    middle = [(low * high) ** 0.5 for low, high in itertools.pairwise(edges)]
    total = max(1, sum(counts["all"]))
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "x": middle,
            "y": [100 * count / total for count in counts["all"]],
            "width": [0.94 * (b - a) for a, b in itertools.pairwise(edges)],
            "name": "all records",
            "legendgroup": "all records",
            "marker": {"color": "@muted/45"},
            "hovertemplate": "%{y:.1f}%",
        }
    ]
    keys = [Key("all records", "@muted", "square")]
    for place, group in enumerate(study.groups):
        own = counts.get(group)
        if own is None or not sum(own):
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": middle,
                "y": [100 * count / sum(own) for count in own],
                "name": f.label(group, 40),
                "legendgroup": group,
                "line": {"color": f.group_colour(place), "width": 2, "shape": "hvh"},
                "hovertemplate": "%{y:.1f}%",
            }
        )
        keys.append(Key(group, f.group_colour(place), "line"))
    clip = finite(last.get("clip"))
    shapes = [] if clip is None else [f.rule(clip, text=f" clip {short(clip)}")]
    share = finite(last.get("clipped"))
    said = "" if share is None else f"; {percent(share, digits=0)} are clipped"
    rows = [
        [f"{short(low)} to {short(high)}", *(str(own[place]) for own in counts.values())]
        for place, (low, high) in enumerate(itertools.pairwise(edges))
    ]
    return Figure(
        f"norms-histogram-{study.titles.index(title)}",
        "At the end of training",
        f"The norms of the gradients that {title} clips, of the probed records after the last "
        f"step{said}. Lines are the groups' own distributions.",
        traces,
        {
            "xaxis": f.log_axis("gradient norm"),
            "yaxis": f.axis("records (%)"),
            "shapes": shapes,
            "bargap": 0,
        },
        Grid(["norm", *counts], rows, caption="Number of records by gradient norm"),
        keys,
        wide=False,
    )


def _fan(study: Study, title: str) -> Figure | None:
    """The median, the middle half and the middle nine tenths over training."""
    readings = [run.readings for run in study.runs[title]]

    def quantile(share: str) -> Curve:
        return curve(readings, lambda row: at(row, "norms", "quantiles", share))

    low, first, middle, third, high = (quantile(q) for q in ("0.05", "0.25", "0.5", "0.75", "0.95"))
    if not middle.steps:
        return None
    traces = [
        f.band(middle.steps, below.mean, above.mean, f"@c5/{strength}")
        for below, above, strength in ((low, high, 14), (first, third, 28))
    ]
    traces += f.line("median", Curve(middle.steps, middle.mean, middle.mean, middle.mean), "@c5")
    bound = curve(readings, lambda row: at(row, "norms", "clip"))
    keys = [Key("median", "@c5", "line")]
    if bound.steps:
        flat = Curve(bound.steps, bound.mean, bound.mean, bound.mean)
        traces += f.line("clip bound", flat, "@text", dash="dash")
        keys.append(Key("clip bound", "@text", "dash"))
    rows = [
        [f"{step:,}", *(short(own.mean[place]) for own in (low, first, middle, third, high))]
        for place, step in enumerate(middle.steps)
        if all(own.steps == middle.steps for own in (low, first, third, high))
    ]
    return Figure(
        f"norms-fan-{study.titles.index(title)}",
        "Along training",
        f"The median gradient norm with {title}, and in bands the middle half and the middle nine "
        "tenths of the records.",
        traces,
        {
            "xaxis": f.steps_axis(),
            "yaxis": f.log_axis("gradient norm"),
        },
        Grid(["step", "5%", "25%", "50%", "75%", "95%"], rows, caption="Quantiles of the norms"),
        keys,
        wide=False,
    )
