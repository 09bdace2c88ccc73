"""Utility against epsilon: what more privacy costs each method, and what each epsilon means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plumbline.fairness import NOT_COVERED
from plumbline.fairness.metrics import AUC
from plumbline.fairness.remarks import baseline_of
from plumbline.mechanism.statement import how_often_right
from plumbline.report import figures as f
from plumbline.report.estimates import cell, error_bars
from plumbline.report.learning import best_at_epsilons, in_order
from plumbline.report.measured import half_width, mean
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

_APART = 1.035  # by which methods are drawn apart at each epsilon, so that bars can be seen


def section(study: Study) -> Section | None:
    """A figure for each metric, where methods were run at several epsilons."""
    if len(study.epsilons) < 2:
        return None
    panels: dict[str, list[Part]] = {
        study.metrics[metric].title: [figure(study, metric)] for metric in in_order(study)
    }
    return Section(
        "epsilons",
        "What each epsilon reaches",
        "How good each method is at each epsilon; settings were found at epsilon "
        f"{study.recipe.budget.epsilon:g} and serve the others.",
        [_meaning(study), Tabs("Metric", panels)],
        NOT_COVERED,
        "Every private method at every epsilon, with the settings found at the middle one. Bars "
        "are 95% intervals over seeds; the baseline gives every record the same class. An epsilon "
        "is a limit on what anybody can tell of one record, whatever they know: take the smallest "
        "at which the model is still of use.",
    )


def _meaning(study: Study) -> Grid:
    """What each epsilon means, beside the best that was reached at it."""
    names = in_order(study)[:2]
    rows = []
    for epsilon, (top, _) in best_at_epsilons(study).items():
        shown = [
            cell(
                study.row(top).seeds.overall[name],
                study.metrics[name].scale,
                study.metrics[name].digits,
            )
            for name in names
        ]
        means = how_often_right(epsilon, study.recipe.budget.delta)
        rows.append([f"{epsilon:g}", *shown, study.part(top).base, means])
    heads = [f"{study.metrics[name].title} {study.metrics[name].unit}".strip() for name in names]
    return Grid(
        ["ε", *heads, "best method", "right about one record"],
        rows,
        caption="The best private method at each epsilon; and how often whoever sees its model can "
        "at most be right about whether one record is in the data, where half is guessing.",
    )


def figure(study: Study, metric: str, name: str | None = None) -> Figure:
    """A metric against epsilon, with the lines without privacy and of the simplest model."""
    shown = study.metrics[metric]
    scale, digits = shown.scale, shown.digits
    traces: list[dict[str, Any]] = []
    rows = []
    middle = (len(study.private) - 1) / 2
    for title in study.titles:
        by_epsilon = {
            epsilon: study.row(other).seeds.overall[metric]
            for epsilon, other in study.at_epsilons(title).items()
        }
        known = {e: one for e, one in by_epsilon.items() if mean(one) is not None}
        tint, hover = f.colour(study, title), f"%{{y:.{digits}f}}"
        ys = [scale * (mean(one) or 0.0) for one in known.values()]
        if title in study.private:
            aside = _APART ** (study.private.index(title) - middle)
            xs = [epsilon * aside for epsilon in known]
            drawn = f.path(title, xs, ys, tint, hover, dash=f.dash(study, title))
            widths = [scale * (half_width(one) or 0.0) for one in known.values()]
            drawn |= {"mode": "lines+markers", "marker": {"color": tint, "size": 8}}
            bars = error_bars(ys, widths, (shown.least, shown.most))
            drawn["error_y"] = {**bars, "thickness": 1.5, "color": f"{tint}/55"}
        else:  # a line across, whatever the epsilon
            across = _ends(study) if known else []
            drawn = f.path(title, across, ys * len(across), tint, hover, dash="dot")
        traces.append(drawn)
        rows += [
            [title, f"{e:g}" if title in study.private else "∞", cell(one, scale, digits)]
            for e, one in known.items()
        ]
    simplest, base = _simplest(study, metric)
    if base is not None:
        level = [scale * base] * 2
        traces.append(f.path(simplest, _ends(study), level, "@text", hover, dash="dash"))
    ticks = {"tickvals": study.epsilons, "ticktext": [f"{one:g}" for one in study.epsilons]}
    bars_are = " Bars are 95% intervals of the mean over seeds." if study.seeds > 1 else ""
    return Figure(
        name or f"epsilons-{metric.replace(' ', '-')}",
        f"{shown.title} against epsilon",
        f"{shown.title} on the test records at each epsilon: further left is more private, and the "
        f"dotted line is without privacy.{bars_are}",
        traces,
        {
            "xaxis": f.axis("epsilon", type="log", **ticks),
            "yaxis": f.axis(shown.axis),
            "hovermode": "closest",
        },
        Grid(["method", "ε", shown.title], rows, caption=f"{shown.title} at each epsilon"),
        [
            *(
                key if key.name in study.private else replace(key, mark="dots")
                for key in f.method_keys(study, study.titles)
            ),
            *([] if base is None else [Key(simplest, "@text", "dash")]),
        ],
        height=380,
    )


def _simplest(study: Study, metric: str) -> tuple[str, float | None]:
    """What the simplest model is called, and what it has of a metric, where it has something."""
    if metric == AUC:
        return "guessing", 0.5
    known = baseline_of(study.table.rows[0].seeds.overall) if metric == study.main else None
    return "baseline", known


def _ends(study: Study) -> list[float]:
    """A little beyond the epsilons, on both sides."""
    room = _APART ** (len(study.private) / 2 + 1)
    return [study.epsilons[0] / room, study.epsilons[-1] * room]
