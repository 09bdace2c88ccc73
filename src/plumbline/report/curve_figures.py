"""Figures of lines, one for each method or group, with their numbers in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from plumbline.formats import short
from plumbline.report import figures as f
from plumbline.report.measured import Curve, at, curve
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key

_ALIKE = 1.5  # lengths of runs up to this ratio share an axis of steps
Value = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Line:
    """A curve, and how it is drawn."""

    curve: Curve
    colour: str
    dash: str = "solid"


def of_methods(
    study: Study,
    titles: Sequence[str],
    value: Value,
    rows: Literal["readings", "metrics"] = "readings",
) -> dict[str, Line]:
    """A number of every reading, or of every row of metrics, for each method."""
    return {
        title: Line(
            curve([getattr(run, rows) for run in study.runs[title]], value),
            f.colour(study, title),
            f.dash(study, title),
        )
        for title in titles
    }


def of_groups(
    study: Study, title: str, path: Callable[[str], tuple[str, ...]], *others: str
) -> dict[str, Line]:
    """A number of a method's readings for each group; ``path`` says where it is.

    ``others`` are names of more than a group's records, such as "all".
    """
    readings = [run.readings for run in study.runs[title]]
    colours = dict.fromkeys(others, "@text")
    colours |= {group: f.group_colour(place) for place, group in enumerate(study.groups)}

    def own(group: str) -> Curve:
        return curve(readings, lambda row: at(row, *path(group)))

    dashes = {group: f.group_dash(place) for place, group in enumerate(study.groups)}
    return {
        group: Line(own(group), colour, dashes.get(group, "solid"))
        for group, colour in colours.items()
    }


def over_steps(
    name: str,
    title: str,
    sentence: str,
    lines: Mapping[str, Line],
    axis: Mapping[str, Any],
    *,
    whose: str = "method",
    what: str,
    shown: Callable[[float], str] = short,
    hover: str = ".3g",
    wide: bool = False,
    **layout: Any,
) -> Figure:
    """The figure of some curves.

    Args:
        name: Of the figure.
        title: Its heading.
        sentence: What it shows.
        lines: By the words in the legend.
        axis: The vertical one.
        whose: What the lines are of, in the table.
        what: What is drawn, in the table.
        shown: How a number is written there.
        hover: The format of a number under the pointer.
        wide: Whether the figure takes the whole width.
        layout: Added to plotly's.
    """
    ends = [one.curve.steps[-1] for one in lines.values() if one.curve.steps]
    # Runs of very different lengths would share no readable axis.
    shared = bool(ends) and max(ends) > _ALIKE * min(ends)
    traces = [
        trace
        for whom, one in lines.items()
        for trace in f.line(
            whom,
            _as_share(one.curve) if shared else one.curve,
            one.colour,
            dash=one.dash,
            hover=hover,
        )
    ]
    rows = [
        [whom, f"{step:,}", shown(value)]
        for whom, one in lines.items()
        for step, value in zip(one.curve.steps, one.curve.mean, strict=True)
    ]
    keys = [
        Key(whom, one.colour, "line" if one.dash == "solid" else "dash")
        for whom, one in lines.items()
    ]
    table = Grid([whose, "step", what], rows, caption=f"{what.capitalize()} over steps")
    along = f.steps_axis("share of the run (%)") if shared else f.steps_axis()
    axes = {"xaxis": along, "yaxis": dict(axis), **layout}
    return Figure(name, title, sentence, traces, axes, table, keys, wide=wide)


def _as_share(own: Curve) -> Curve:
    """A curve over the share of its run that is done, in per cent."""
    last = max(own.steps, default=0) or 1
    return replace(own, steps=[100 * step / last for step in own.steps])


def by_method(
    study: Study,
    name: str,
    title: str,
    sentence: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float | None]]],
    axes: Mapping[str, Any],
    head: Sequence[str],
    *,
    rows: Sequence[Sequence[str]] | None = None,
    marks: int = 0,
    wide: bool = False,
) -> Figure:
    """The figure of a line (x and y) for each method.

    Args:
        study: What knows the methods' colours.
        name: Of the figure.
        title: Its heading.
        sentence: What it shows.
        lines: By the method's title.
        axes: Plotly's layout.
        head: Of the table: what stands for x and for y, after the method.
        rows: The table's, if it has others than what is drawn.
        marks: The size of the points' marks, if they have any.
        wide: Whether the figure takes the whole width.
    """
    traces = []
    for method, (x, y) in lines.items():
        tint, dash = f.colour(study, method), f.dash(study, method)
        drawn = f.path(method, x, y, tint, "%{y:.3g}", dash=dash)
        if marks:
            drawn |= {"mode": "lines+markers", "marker": {"color": tint, "size": marks}}
        traces.append(drawn)
    if rows is None:
        rows = [
            [method, short(a), short(b)]
            for method, (x, y) in lines.items()
            for a, b in zip(x, y, strict=True)
        ]
    table = Grid(["method", *head], rows, caption=title)
    keys = f.method_keys(study, list(lines))
    return Figure(name, title, sentence, traces, axes, table, keys, wide=wide)
