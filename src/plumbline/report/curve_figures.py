"""Figures of curves over steps: a line for each method or group, and its numbers in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plumbline.formats import short
from plumbline.report import figures as f
from plumbline.report.measured import Curve, at, curve
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key

Value = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Line:
    """A curve, and how it is drawn."""

    curve: Curve
    colour: str
    dash: str = "solid"


def of_methods(study: Study, titles: list[str], value: Value) -> dict[str, Line]:
    """A number of every reading, for each method."""
    return {
        title: Line(
            curve([run.readings for run in study.runs[title]], value),
            f.colour(study, title),
            f.dash(study, title),
        )
        for title in titles
    }


def of_groups(
    study: Study, title: str, path: Callable[[str], tuple[str, ...]], groups: Mapping[str, str]
) -> dict[str, Line]:
    """A number of a method's readings for each group, by colour; ``path`` says where it is."""
    readings = [run.readings for run in study.runs[title]]

    def own(group: str) -> Curve:
        return curve(readings, lambda row: at(row, *path(group)))

    return {group: Line(own(group), colour) for group, colour in groups.items()}


def over_steps(
    name: str,
    title: str,
    sentence: str,
    lines: Mapping[str, Line],
    axis: Mapping[str, Any],
    *,
    whose: str = "method",
    what: str,
    hover: str = ".3g",
    wide: bool = False,
    **layout: Any,
) -> Figure:
    """The figure of some lines.

    Args:
        name: Of the figure.
        title: Its heading.
        sentence: What it shows.
        lines: By the words in the legend.
        axis: The vertical one.
        whose: What the lines are of, in the table.
        what: What is drawn, in the table.
        hover: The format of a number under the pointer.
        wide: Whether the figure takes the whole width.
        layout: Added to plotly's.
    """
    traces = [
        trace
        for whom, one in lines.items()
        for trace in f.line(whom, one.curve, one.colour, dash=one.dash, hover=hover)
    ]
    rows = [
        [whom, f"{step:,}", short(value)]
        for whom, one in lines.items()
        for step, value in zip(one.curve.steps, one.curve.mean, strict=True)
    ]
    keys = [
        Key(whom, one.colour, "line" if one.dash == "solid" else "dash")
        for whom, one in lines.items()
    ]
    table = Grid([whose, "step", what], rows, caption=f"{what.capitalize()} over steps")
    shown = {"xaxis": f.steps_axis(), "yaxis": dict(axis), **layout}
    return Figure(name, title, sentence, traces, shown, table, keys, wide=wide)
