"""How sharp the loss is: eigenvalues along training and at its end, the loss around the model."""

from __future__ import annotations

from typing import Any

from plumbline.diagnostics import NOT_COVERED, Density
from plumbline.formats import finite, short
from plumbline.report import figures as f
from plumbline.report.curve_figures import of_groups, over_steps
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Part, Section, Tabs


def section(study: Study) -> Section | None:
    """Whatever was measured of it."""
    parts: list[Part] = []
    if titles := study.measured("hessian"):
        parts.append(Tabs("Method", {title: [_along(study, title)] for title in titles}))
    ends = (_largest(study), _density(study), _interpolation(study))
    parts += [figure for figure in ends if figure]
    maps = {t: found for t in study.titles if (found := _landscape(study, t)) is not None}
    if maps:
        parts.append(Tabs("Method", {title: [figure] for title, figure in maps.items()}))
    if not parts:
        return None
    return Section(
        "curvature",
        "How sharp the loss is",
        "Around a sharp minimum gradients grow fast, so that clipping takes more of them and noise "
        "throws further.",
        parts,
        NOT_COVERED,
    )


def _along(study: Study, title: str) -> Figure:
    colours = {"all": "@text"} | {g: f.group_colour(i) for i, g in enumerate(study.groups)}
    return over_steps(
        f"curvature-along-{study.titles.index(title)}",
        "The largest eigenvalue along training",
        f"The largest eigenvalue of the Hessian of each group's loss, with {title}: how sharp the "
        "loss is in its sharpest direction.",
        of_groups(study, title, lambda whose: ("hessian", whose), colours),
        f.axis("largest eigenvalue", rangemode="tozero"),
        whose="records",
        what="eigenvalue",
        hover=".4g",
        wide=True,
    )


def _final(study: Study, title: str, name: str) -> Any:
    """What the first seed measured at the end, if it did."""
    found = study.runs[title][0].final.get(name)
    return found if isinstance(found, dict) else None


def _largest(study: Study) -> Figure | None:
    found = {t: one["largest"] for t in study.titles if (one := _final(study, t, "spectrum"))}
    if not found:
        return None
    count = max(len(values) for values in found.values())
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": f.label(title, 40),
            "legendgroup": title,
            "x": list(range(1, len(values) + 1)),
            "y": values,
            "line": {
                "color": f.colour(study, title),
                "width": 2,
                "dash": f.dash(study, title),
            },
            "marker": {"color": f.colour(study, title), "size": 7},
            "hovertemplate": "%{y:.3g}",
        }
        for title, values in found.items()
    ]
    rows = [
        [t, *(short(v) for v in values), *["–"] * (count - len(values))]
        for t, values in found.items()
    ]
    return Figure(
        "curvature-spectrum",
        "The largest eigenvalues at the end",
        "The largest eigenvalues of the Hessian of the loss after the last step: lower is flatter.",
        traces,
        {
            "xaxis": f.axis("rank", dtick=1),
            "yaxis": f.axis("eigenvalue", rangemode="tozero"),
        },
        Grid(["method", *map(str, range(1, count + 1))], rows, caption="Largest eigenvalues"),
        f.method_keys(study, list(found)),
        wide=False,
    )


def _density(study: Study) -> Figure | None:
    traces, rows, titles = [], [], []
    for title in study.titles:
        found = _final(study, title, "density")
        if not found or not found.get("values"):
            continue
        x, y = Density(found["values"], found["weights"]).curve(points=200)
        titles.append(title)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f.label(title, 40),
                "legendgroup": title,
                "x": [round(value, 6) for value in x],
                "y": [max(value, 1e-6) for value in y],
                "line": {
                    "color": f.colour(study, title),
                    "width": 2,
                    "dash": f.dash(study, title),
                },
                "hovertemplate": "%{y:.2g}",
            }
        )
        rows += [
            [title, short(v), short(w)]
            for v, w in zip(found["values"], found["weights"], strict=True)
        ]
    if not traces:
        return None
    return Figure(
        "curvature-density",
        "All eigenvalues at the end",
        "The distribution of the Hessian's eigenvalues after the last step, smoothed: most are "
        "near zero, and a few are large.",
        traces,
        {
            "xaxis": f.axis("eigenvalue"),
            "yaxis": f.axis("density", type="log", exponentformat="power", range=[-6, None]),
        },
        Grid(["method", "eigenvalue", "weight"], rows, caption="Ritz values and their weights"),
        f.method_keys(study, titles),
        wide=False,
    )


def _interpolation(study: Study) -> Figure | None:
    found = {t: one for t in study.titles if (one := _final(study, t, "interpolation"))}
    if not found:
        return None
    traces, rows = [], []
    for title, one in found.items():
        places, losses = one["positions"], [finite(value) for value in one["losses"]]
        rows += [[title, f"{a:.2f}", short(b)] for a, b in zip(places, losses, strict=True)]
        tint = {"color": f.colour(study, title), "width": 2, "dash": f.dash(study, title)}
        common = {"name": f.label(title, 40), "legendgroup": title, "hovertemplate": "%{y:.3g}"}
        line = {"type": "scatter", "mode": "lines", "x": places, "y": losses, "line": tint}
        traces.append({**line, **common})
    return Figure(
        "curvature-interpolation",
        "From the first weights to the last",
        "The loss on the straight line from where training started (0) to where it ended (1), and "
        "a little beyond both.",
        traces,
        {
            "xaxis": f.axis("position"),
            "yaxis": f.axis("loss", rangemode="tozero"),
            "shapes": [f.rule(1.0)],
        },
        Grid(["method", "position", "loss"], rows, caption="Loss along the line"),
        f.method_keys(study, list(found)),
    )


def _landscape(study: Study, title: str) -> Figure | None:
    found = _final(study, title, "landscape")
    if not found:
        return None
    steps, losses = found["steps"], [[finite(v) for v in row] for row in found["losses"]]
    rows = [
        [f"{s:.2f}", *(short(value) for value in row)] for s, row in zip(steps, losses, strict=True)
    ]
    return Figure(
        f"curvature-landscape-{study.titles.index(title)}",
        "The loss around the model",
        f"The loss on a random plane through the weights that {title} ends at (the cross), in "
        "units of the weights' own size.",
        [
            {
                "type": "contour",
                "x": steps,
                "y": steps,
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
                "hovertemplate": "loss %{z:.3f}",
                "name": "",
            },
            {
                "type": "scatter",
                "mode": "markers",
                "x": [0],
                "y": [0],
                "marker": {"symbol": "x", "size": 11, "color": "@c6"},
                "hovertemplate": "the model",
                "name": "",
            },
        ],
        {
            "xaxis": f.axis("first direction", showgrid=False, constrain="domain"),
            "yaxis": f.axis(
                "second direction", showgrid=False, scaleanchor="x", constrain="domain"
            ),
            "hovermode": "closest",
        },
        Grid(["", *(f"{s:.2f}" for s in steps)], rows, caption="Loss on the plane"),
        height=420,
    )
