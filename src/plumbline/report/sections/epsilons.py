"""Accuracy against epsilon: what more privacy costs each method."""

from __future__ import annotations

from typing import Any

from plumbline.fairness import NOT_COVERED
from plumbline.report import figures as f
from plumbline.report.estimates import cell
from plumbline.report.measured import half_width, mean
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Section

_METRICS = {"accuracy": (100.0, 1), "loss": (1.0, 3)}


def section(study: Study) -> Section | None:
    """A figure of accuracy and one of loss, where methods were run at several epsilons."""
    if len(study.epsilons) < 2:
        return None
    return Section(
        "epsilons",
        "Accuracy against epsilon",
        "What each method reaches at each epsilon; settings were found at epsilon "
        f"{study.recipe.budget.epsilon:g} and serve the others.",
        [_figure(study, metric) for metric in _METRICS],
        NOT_COVERED,
        "Every private method at every epsilon, with the settings found at the middle one. Bars "
        "are 95% intervals over seeds.",
    )


def _figure(study: Study, metric: str) -> Figure:
    scale, digits = _METRICS[metric]
    traces: list[dict[str, Any]] = []
    rows = []
    for title in study.titles:
        by_epsilon = {
            epsilon: study.row(other).seeds.overall[metric]
            for epsilon, other in study.at_epsilons(title).items()
        }
        known = {e: one for e, one in by_epsilon.items() if mean(one) is not None}
        tint, hover = f.colour(study, title), f"%{{y:.{digits}f}}"
        ys = [scale * (mean(one) or 0.0) for one in known.values()]
        if title in study.private:
            drawn = f.path(title, list(known), ys, tint, hover, dash=f.dash(study, title))
            widths = [scale * (half_width(one) or 0.0) for one in known.values()]
            drawn |= {"mode": "lines+markers", "marker": {"color": tint, "size": 8}}
            drawn["error_y"] = {"type": "data", "array": widths, "visible": True, "width": 0}
        else:  # a line across, whatever the epsilon
            across = study.epsilons if known else []
            drawn = f.path(title, across, ys * len(across), tint, hover, dash="dot")
        traces.append(drawn)
        rows += [
            [title, f"{e:g}" if title in study.private else "∞", cell(one, scale, digits)]
            for e, one in known.items()
        ]
    ticks = {"tickvals": study.epsilons, "ticktext": [f"{one:g}" for one in study.epsilons]}
    return Figure(
        f"epsilons-{metric}",
        f"{metric.capitalize()} against epsilon",
        f"{metric.capitalize()} on the test records at each epsilon; the dotted line is without "
        "privacy. Bars are 95% intervals of the mean over seeds.",
        traces,
        {
            "xaxis": f.axis("epsilon", type="log", **ticks),
            "yaxis": f.axis("accuracy (%)" if metric == "accuracy" else metric),
        },
        Grid(["method", "ε", metric], rows, caption=f"{metric.capitalize()} at each epsilon"),
        f.method_keys(study, study.titles),
        wide=False,
    )
