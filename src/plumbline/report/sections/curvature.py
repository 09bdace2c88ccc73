"""How sharp the loss is: eigenvalues along training and at its end, the loss around the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plumbline.diagnostics import NOT_COVERED, Density
from plumbline.formats import finite, short
from plumbline.report import figures as f
from plumbline.report.curve_figures import by_method, of_groups, over_steps
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Part, Section, Tabs

_Lines = dict[str, tuple[Sequence[float], Sequence[float | None]]]


def section(study: Study) -> Section | None:
    """Whatever was measured of it."""
    parts: list[Part] = []
    if titles := study.measured("hessian"):
        parts.append(Tabs("Method", {title: [_along(study, title)] for title in titles}))
    parts += [
        draw(study, found)
        for name, draw in (
            ("spectrum", _largest),
            ("density", _density),
            ("interpolation", _interpolation),
        )
        if (found := _final(study, name))
    ]
    if maps := _final(study, "landscape"):
        parts.append(Tabs("Method", {t: [_landscape(study, t, one)] for t, one in maps.items()}))
    if not parts:
        return None
    return Section(
        "curvature",
        "How sharp the loss is",
        "Around a sharp minimum gradients grow fast, so that clipping takes more of them and noise "
        "throws further.",
        parts,
        NOT_COVERED,
        "Eigenvalues come from Lanczos runs on the probed records; the plane of the landscape is "
        "random and filter-normalised, so that planes of different models can be compared "
        "(Sharpness-Aware Training, Figs. 5, 8 and 9).",
        "docs/clipping-or-noise.md",
    )


def _along(study: Study, title: str) -> Figure:
    return over_steps(
        f"curvature-along-{study.titles.index(title)}",
        "The largest eigenvalue along training",
        f"The largest eigenvalue of the Hessian of each group's loss, with {title}: how sharp the "
        "loss is in its sharpest direction.",
        of_groups(study, title, lambda whose: ("hessian", whose), "all"),
        f.axis("largest eigenvalue", rangemode="tozero"),
        whose="records",
        what="eigenvalue",
        hover=".4g",
        wide=True,
    )


def _final(study: Study, name: str) -> dict[str, dict[str, Any]]:
    """What the first seed of each method measured at the end, where it did."""
    found = {title: study.runs[title][0].final.get(name) for title in study.titles}
    return {t: one for t, one in found.items() if isinstance(one, dict) and any(one.values())}


def _largest(study: Study, found: dict[str, dict[str, Any]]) -> Figure:
    lines: _Lines = {
        t: (range(1, len(one["largest"]) + 1), one["largest"]) for t, one in found.items()
    }
    return by_method(
        study,
        "curvature-spectrum",
        "The largest eigenvalues at the end",
        "The largest eigenvalues of the Hessian of the loss after the last step: lower is flatter.",
        lines,
        {"xaxis": f.axis("rank", dtick=1), "yaxis": f.axis("eigenvalue", rangemode="tozero")},
        ["rank", "eigenvalue"],
        marks=7,
    )


def _density(study: Study, found: dict[str, dict[str, Any]]) -> Figure:
    lines: _Lines = {}
    rows = []
    for title, one in found.items():
        x, y = Density(one["values"], one["weights"]).curve(points=200)
        lines[title] = [round(value, 6) for value in x], [max(value, 1e-6) for value in y]
        atoms = zip(one["values"], one["weights"], strict=True)
        rows += [[title, short(value), short(weight)] for value, weight in atoms]
    up = f.axis("density", type="log", exponentformat="power", range=[-6, None])
    return by_method(
        study,
        "curvature-density",
        "All eigenvalues at the end",
        "The distribution of the Hessian's eigenvalues after the last step, smoothed: most are "
        "near zero, and a few are large. The table has the Ritz values and their weights.",
        lines,
        {"xaxis": f.axis("eigenvalue"), "yaxis": up},
        ["eigenvalue", "weight"],
        rows=rows,
    )


def _interpolation(study: Study, found: dict[str, dict[str, Any]]) -> Figure:
    up, line = f.axis("loss", rangemode="tozero"), [f.rule(1.0)]
    return by_method(
        study,
        "curvature-interpolation",
        "From the first weights to the last",
        "The loss on the straight line from where training started (0) to where it ended (1), and "
        "a little beyond both.",
        {t: (one["positions"], list(map(finite, one["losses"]))) for t, one in found.items()},
        {"xaxis": f.axis("position"), "yaxis": up, "shapes": line},
        ["position", "loss"],
        wide=True,
    )


def _landscape(study: Study, title: str, found: dict[str, Any]) -> Figure:
    steps, losses = found["steps"], [[finite(v) for v in row] for row in found["losses"]]
    rows = [
        [f"{s:.2f}", *(short(value) for value in row)] for s, row in zip(steps, losses, strict=True)
    ]
    contour = {
        "type": "contour",
        "z": losses,
        "colorscale": [[0, "@c5"], [0.5, "@c2"], [1, "@surface"]],
        "ncontours": 9,
        "contours": {
            "coloring": "fill",  # a heat map takes three times as long to draw
            "showlabels": True,
            "labelfont": {"color": "@text", "size": 11},
        },
        "line": {"color": "@text/45", "width": 0.8},
        "showscale": False,
    }
    square = {"showgrid": False, "constrain": "domain"}
    return Figure(
        f"curvature-landscape-{study.titles.index(title)}",
        "The loss around the model",
        f"The loss on a random plane through the weights that {title} ends at (the cross), in "
        "units of the weights' own size.",
        [
            f.trace("", steps, steps, "loss %{z:.3f}", **contour),
            f.marks("", [0], [0], "@c6", "the model", symbol="x"),
        ],
        {
            "xaxis": f.axis("first direction", **square),
            "yaxis": f.axis("second direction", **square, scaleanchor="x"),
            "hovermode": "closest",
        },
        Grid(["", *(f"{s:.2f}" for s in steps)], rows, caption="Loss on the plane"),
        height=420,
    )
