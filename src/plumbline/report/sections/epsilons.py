"""Accuracy against epsilon: what more privacy costs each method."""

from __future__ import annotations

from typing import Any

from plumbline.fairness import NOT_COVERED
from plumbline.formats import number, points
from plumbline.report import figures as f
from plumbline.report.measured import error, half_width, mean
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
    )


def _figure(study: Study, metric: str) -> Figure:
    scale, digits = _METRICS[metric]
    traces: list[dict[str, Any]] = []
    rows = []
    for title in study.titles:
        by_epsilon = study.at_epsilons(title)
        known = {
            epsilon: (scale * value, half_width(estimate), estimate)
            for epsilon, estimate in (
                (epsilon, study.row(other).seeds.overall[metric])
                for epsilon, other in by_epsilon.items()
            )
            if (value := mean(estimate)) is not None
        }
        colour = f.colour(study, title)
        flat = title not in study.private
        xs = study.epsilons if flat and known else list(known)
        ys = (
            [next(iter(known.values()))[0]] * len(xs)
            if flat and known
            else [k[0] for k in known.values()]
        )
        widths = [0.0 if flat else scale * (width or 0.0) for _, width, _ in known.values()]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines" if flat else "lines+markers",
                "name": f.label(title, 40),
                "legendgroup": title,
                "x": xs,
                "y": ys,
                "error_y": {"type": "data", "array": widths, "visible": not flat, "width": 0},
                "line": {
                    "color": colour,
                    "width": 2.5,
                    "dash": "dot" if flat else f.dash(study, title),
                },
                "marker": {"color": colour, "size": 8},
                "hovertemplate": f"%{{y:.{digits}f}}",
            }
        )
        rows += [
            [
                title,
                "∞" if flat else f"{epsilon:g}",
                _shown(metric, mean(estimate), error(estimate)),
            ]
            for epsilon, (value, _, estimate) in known.items()
        ]
    unit = " (%)" if metric == "accuracy" else ""
    return Figure(
        f"epsilons-{metric}",
        f"{metric.capitalize()} against epsilon",
        f"{metric.capitalize()} on the test records at each epsilon; the dotted line is without "
        "privacy. Bars are 95% intervals of the mean over seeds.",
        traces,
        {
            "xaxis": f.axis(
                "epsilon",
                type="log",
                tickvals=study.epsilons,
                ticktext=[f"{one:g}" for one in study.epsilons],
            ),
            "yaxis": f.axis(f"{metric}{unit}"),
        },
        Grid(["method", "ε", metric], rows, caption=f"{metric.capitalize()} at each epsilon"),
        f.method_keys(study, study.titles),
        wide=False,
    )


def _shown(metric: str, value: float | None, spread: float | None) -> str:
    return points(value, spread) if metric == "accuracy" else number(value, spread)
