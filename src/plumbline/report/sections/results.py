"""Accuracy and loss of every method, overall and by group, with 95% intervals over seeds."""

from __future__ import annotations

import math
from typing import Any

from plumbline.fairness import NOT_COVERED, Estimate
from plumbline.formats import MISSING, number, points
from plumbline.mechanism.rounding import rounded_up
from plumbline.report import figures as f
from plumbline.report.measured import half_width, mean
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

_METRICS = {"accuracy": ("Accuracy", 100.0, "%", 1), "loss": ("Loss", 1.0, "", 3)}


def section(study: Study) -> Section:
    """A figure for accuracy, one for loss, and the table."""
    seeds = "one seed" if study.seeds == 1 else f"{study.seeds} seeds"
    panels: dict[str, list[Part]] = {
        shown: [_figure(study, metric)] for metric, (shown, *_) in _METRICS.items()
    }
    return Section(
        "results",
        "Accuracy and loss",
        f"How well each method does on the test records, over {seeds}.",
        [Tabs("Metric", panels), _table(study)],
        NOT_COVERED,
    )


def dots(
    series: dict[str, list[Estimate | None]],
    colours: list[str],
    symbols: list[str],
    scale: float,
    hover: str,
    most: float = math.inf,
) -> list[dict[str, Any]]:
    """One mark per method and series with its interval, the series of a method below each other.

    Intervals end at ``most``, the largest value that there can be.
    """
    traces: list[dict[str, Any]] = []
    gap = min(0.22, 0.66 / max(1, len(series)))
    for place, (name, estimates) in enumerate(series.items()):
        offset = gap * (place - (len(series) - 1) / 2)
        known = [(i, e, m) for i, e in enumerate(estimates) if e and (m := mean(e)) is not None]
        widths = [half_width(estimate) for _, estimate, _ in known]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f.label(name, 40),
                "legendgroup": name,
                "x": [scale * value for _, _, value in known],
                "y": [i + offset for i, _, _ in known],
                "error_x": {
                    "type": "data",
                    "array": [
                        min(scale * (width or 0.0), most - scale * value)
                        for width, (_, _, value) in zip(widths, known, strict=True)
                    ],
                    "arrayminus": [scale * (width or 0.0) for width in widths],
                    "symmetric": False,
                    "color": colours[place],
                    "thickness": 2,
                    "width": 0,
                    "visible": any(widths),
                },
                "marker": {"color": colours[place], "symbol": symbols[place], "size": 11},
                "customdata": [scale * (width or 0.0) for width in widths],
                "hovertemplate": f"%{{x:{hover}}} ± %{{customdata:{hover}}}",
            }
        )
    return traces


def _figure(study: Study, metric: str) -> Figure:
    shown, scale, unit, digits = _METRICS[metric]
    titles = study.titles
    series: dict[str, list[Estimate | None]] = {
        "all records": [study.row(t).seeds.overall[metric] for t in titles]
    }
    for group in study.groups:
        series[group] = [study.row(t).seeds.by_group[group][metric] for t in titles]
    colours = ["@text", *(f.group_colour(i) for i in range(len(study.groups)))]
    symbols = ["circle", *(f.group_symbol(i) for i in range(len(study.groups)))]
    most = 100.0 if metric == "accuracy" else math.inf
    rows = [
        [title, *(cell(own[place], scale, digits) for own in series.values())]
        for place, title in enumerate(titles)
    ]
    interval = " Lines are 95% intervals of the mean over seeds." if study.seeds > 1 else ""
    higher = "Further right is better." if metric == "accuracy" else "Further left is better."
    return Figure(
        f"results-{metric}",
        f"{shown} by method",
        f"{shown} on the test records, of everyone and of each group. {higher}{interval}",
        dots(series, colours, symbols, scale, f".{digits}f", most),
        {
            "xaxis": f.axis(f"{shown.lower()}{f' ({unit})' if unit else ''}", side="top"),
            "yaxis": f.categories(titles),
            "margin": f.margins(titles, on_top=True),
            "hovermode": "closest",
        },
        Grid(["method", *series], rows, caption=f"{shown}, mean ± standard error over seeds"),
        [Key("all records", "@text"), *f.group_keys(study.groups)],
        height=90 + len(titles) * (38 + 16 * len(study.groups)),
    )


def _table(study: Study) -> Grid:
    head = ["method", "ε", "accuracy %", "loss"]
    groups = study.groups if len(study.groups) <= 3 else []  # more are in the figures' own data
    head += [f"{group} %" for group in groups]
    head += ["p", "seconds"]
    rows = []
    for title in study.titles:
        row = study.row(title)
        cells = [title, rounded_up(row.epsilon, infinite="∞")]
        cells += [cell(row.seeds.overall[m], s, d) for m, (_, s, _, d) in _METRICS.items()]
        cells += [cell(row.seeds.by_group[group]["accuracy"], 100.0, 1) for group in groups]
        tests = {} if study.table.tests is None else study.table.tests.tests
        p = tests[title].adjusted if title in tests else None
        cells += [number(p), f"{row.seconds:.0f}"]
        rows.append(cells)
    caption = "Mean ± standard error over seeds."
    if study.table.tests is not None:
        caption += (
            f" p: is it more accurate than {study.recipe.baseline}? One-sided Wilcoxon test with "
            f"Holm's correction. {study.table.tests.note}"
        )
    return Grid(head, rows, caption=caption)


def cell(estimate: Estimate | None, scale: float, digits: int) -> str:
    """A mean with its standard error, as points where ``scale`` is 100."""
    if estimate is None:
        return MISSING
    written = points if scale == 100 else number
    return written(estimate.mean, estimate.standard_error, digits)
