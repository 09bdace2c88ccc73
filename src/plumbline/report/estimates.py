"""Figures and cells of estimates: a mark for each method and group, with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.fairness import Estimate
from plumbline.formats import MISSING, number, points
from plumbline.report import figures as f
from plumbline.report.measured import half_width, mean
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key

ALL = "all records"


def cell(estimate: Estimate | None, scale: float, digits: int) -> str:
    """A mean with its standard error, as points where ``scale`` is 100."""
    if estimate is None:
        return MISSING
    written = points if scale == 100 else number
    return written(estimate.mean, estimate.standard_error, digits)


def error_bars(
    values: Sequence[float], widths: Sequence[float], within: tuple[float, float]
) -> dict[str, Any]:
    """Bars about values, which end where no value can be: those of two seeds are very wide."""
    least, most = within
    ends = list(zip(values, widths, strict=True))
    return {
        "type": "data",
        "array": [min(width, max(0.0, most - value)) for value, width in ends],
        "arrayminus": [min(width, max(0.0, value - least)) for value, width in ends],
        "symmetric": False,
        "width": 0,
        "visible": any(widths),
    }


def by_method(
    study: Study,
    name: str,
    title: str,
    sentence: str,
    axis: str,
    series: Mapping[str, Sequence[Estimate | None]],
    table: Grid,
    *,
    titles: Sequence[str],
    scale: float,
    digits: int,
    within: tuple[float, float] = (-math.inf, math.inf),
    **layout: Any,
) -> Figure:
    """One mark per method and series, the series of a method below each other.

    Args:
        study: What knows the groups and seeds.
        name: Of the figure.
        title: Its heading.
        sentence: What it shows; what the lines are is added.
        axis: The words on the horizontal axis.
        series: For ``ALL`` or a group, an estimate for each method.
        table: The numbers.
        titles: The methods.
        scale: By which estimates are multiplied.
        digits: After the point, under the pointer.
        within: The least and the largest value that there can be, where intervals end.
        layout: Added to plotly's.
    """
    traces: list[dict[str, Any]] = []
    for label, offset in f.offsets(list(series)).items():
        place = study.groups.index(label) if label in study.groups else None
        tint = "@text" if place is None else f.group_colour(place)
        known = [
            (place, scale * value, scale * (half_width(one) or 0.0))
            for place, one in enumerate(series[label])
            if one and (value := mean(one)) is not None
        ]
        x, y = [value for _, value, _ in known], [i + offset for i, *_ in known]
        widths = [width for *_, width in known]
        hover = f"%{{x:.{digits}f}} ± %{{customdata:.{digits}f}}"
        symbol = "circle" if place is None else f.group_symbol(place)
        bars = {**error_bars(x, widths, within), "color": tint, "thickness": 2}
        marks = f.marks(label, x, y, tint, hover, symbol=symbol)
        traces.append({**marks, "error_x": bars, "customdata": widths})
    interval = " Lines are 95% intervals of the mean over seeds." if study.seeds > 1 else ""
    keys = [Key(ALL, "@text")] if ALL in series else []
    keys += f.group_keys(study.groups) if len(series) > len(keys) else []
    return Figure(
        name,
        title,
        f"{sentence}{interval}",
        traces,
        f.by_name(titles, f.axis(axis, side="top"), **layout),
        table,
        keys,
        height=90 + len(titles) * (22 + 16 * len(series)),
    )
