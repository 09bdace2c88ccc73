"""Whether gradients lie symmetrically about their mean (paper 001, Figs. 1 and 2)."""

from __future__ import annotations

import itertools
from typing import Any

from plumbline.diagnostics import NOT_COVERED
from plumbline.formats import finite
from plumbline.report import figures as f
from plumbline.report.measured import at
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs


def section(study: Study) -> Section | None:
    """For each method, the gradients in a random plane and their cosines with the mean."""
    panels: dict[str, list[Part]] = {}
    for title in study.measured("symmetry"):
        readings = [row for row in study.runs[title][0].readings if "symmetry" in row]
        if not readings:
            continue
        last = readings[-1]["symmetry"]
        drawn = [one for one in (_plane(study, title, last), _cosines(study, title, last)) if one]
        if drawn:
            panels[title] = [*drawn]
    if not panels:
        return None
    return Section(
        "symmetry",
        "Are the gradients symmetric?",
        "Clipping keeps the direction of gradients that lie symmetrically about their mean; it is "
        "lopsided ones that it bends.",
        [Tabs("Method", panels)],
        NOT_COVERED,
    )


def _plane(study: Study, title: str, last: dict[str, Any]) -> Figure | None:
    plane = last.get("plane")
    if not isinstance(plane, dict):
        return None
    steps, counts, true = plane["steps"], plane["counts"], plane["true_gradient"]
    across = [list(column) for column in zip(*counts, strict=True)]  # plotly's rows are y
    reach = steps[-1] + (steps[1] - steps[0]) / 2
    traces: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": steps,
            "y": steps,
            "z": across,
            "colorscale": [[0, "@surface"], [0.05, "@c2/45"], [0.4, "@c2"], [1, "@c5"]],
            "showscale": False,
            "hovertemplate": "%{z} records",
            "name": "",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": [0],
            "y": [0],
            "name": "mean gradient",
            "legendgroup": "mean gradient",
            "marker": {
                "symbol": "x",
                "size": 12,
                "color": "@c6",
                "line": {"color": "@surface", "width": 1.5},
            },
            "hovertemplate": "the mean",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "x": [-true[0]],
            "y": [-true[1]],
            "name": "zero",
            "legendgroup": "zero",
            "marker": {"symbol": "circle-open", "size": 12, "color": "@text", "line": {"width": 2}},
            "hovertemplate": "a gradient of zero",
        },
    ]
    rows = [
        [f"{x:.3g}", *(str(count) for count in own)] for x, own in zip(steps, counts, strict=True)
    ]
    span = {"range": [-reach, reach], "showgrid": False}
    return Figure(
        f"symmetry-plane-{study.titles.index(title)}",
        "In a random plane",
        f"The probed records' gradients after the last step of {title}, projected on a random "
        "plane about their mean: darker is more records. Symmetric ones look the same turned by "
        "half a circle.",
        traces,
        {
            "xaxis": f.axis("first direction", **span, constrain="domain"),
            "yaxis": f.axis("second direction", **span, scaleanchor="x", constrain="domain"),
            "hovermode": "closest",
        },
        Grid(["", *(f"{y:.3g}" for y in steps)], rows, caption="Number of records on the plane"),
        [Key("mean gradient", "@c6", "diamond"), Key("zero", "@text", "ring")],
        height=400,
        wide=False,
    )


def _cosines(study: Study, title: str, last: dict[str, Any]) -> Figure | None:
    edges, counts = at(last, "cosines", "edges"), at(last, "cosines", "counts")
    if not edges or not counts or not sum(counts):
        return None
    middle = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    total = sum(counts)
    p, skew = finite(last.get("cosine_p_value")), finite(last.get("bias"))
    said = ""
    if p is not None:
        said = (
            f" A test of symmetry about zero gives p = {p:.2g}."
            if p >= 0.0001
            else " They are not symmetric about zero (p < 0.0001)."
        )
    rows = [
        [f"{low:.2f} to {high:.2f}", str(count)]
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    if skew is not None:
        rows.append(["bias b (paper 001, Eq. 5)", f"{skew:.3g}"])
    return Figure(
        f"symmetry-cosines-{study.titles.index(title)}",
        "Agreement with the mean",
        f"The cosine of each probed record's gradient with the mean gradient, after the last step "
        f"of {title}.{said}",
        [
            {
                "type": "bar",
                "x": middle,
                "y": [100 * count / total for count in counts],
                "width": 0.94 * (edges[1] - edges[0]),
                "marker": {"color": "@c5"},
                "hovertemplate": "%{y:.1f}%",
                "name": "",
            }
        ],
        {
            "xaxis": f.axis("cosine with the mean gradient", range=[-1, 1]),
            "yaxis": f.axis("records (%)"),
            "shapes": [f.rule(0.0)],
            "bargap": 0,
        },
        Grid(["cosine", "records"], rows, caption="Number of records by cosine"),
        height=400,
        wide=False,
    )
