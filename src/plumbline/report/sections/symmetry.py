"""Whether gradients lie symmetrically about their mean (Geometric Perspective, Figs. 1 and 2)."""

from __future__ import annotations

import itertools
from typing import Any

from plumbline.diagnostics import NOT_COVERED
from plumbline.formats import finite, short
from plumbline.report import figures as f
from plumbline.report.measured import at
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs


def section(study: Study) -> Section | None:
    """For each method, the gradients in a random plane and their cosines with the mean."""
    panels: dict[str, list[Part]] = {}
    for title in study.measured("symmetry"):
        readings = [row["symmetry"] for row in study.runs[title][0].readings if "symmetry" in row]
        drawn = [draw(study, title, readings[-1]) for draw in (_plane, _cosines) if readings]
        if any(drawn):
            panels[title] = [one for one in drawn if one]
    if not panels:
        return None
    return Section(
        "symmetry",
        "Are the gradients symmetric?",
        "Clipping keeps the direction of gradients that lie symmetrically about their mean; it is "
        "lopsided ones that it bends.",
        [Tabs("Method", panels)],
        NOT_COVERED,
        "If the gradients' noise is symmetric, clipping keeps the direction of their mean "
        "(Geometric Perspective, Theorem 2). The plane is random, the same at every reading; the "
        "counts on it are stored, not the records.",
        "docs/clipping-or-noise.md",
    )


def _plane(study: Study, title: str, last: dict[str, Any]) -> Figure | None:
    plane = last.get("plane")
    if not isinstance(plane, dict):
        return None
    steps, counts, true = plane["steps"], plane["counts"], plane["true_gradient"]
    reach = steps[-1] + (steps[1] - steps[0]) / 2
    heat = {
        "type": "heatmap",
        "z": [list(column) for column in zip(*counts, strict=True)],  # plotly's rows are y
        "colorscale": [[0, "@surface"], [0.05, "@c2/45"], [0.4, "@c2"], [1, "@c5"]],
        "showscale": False,
    }
    cross: dict[str, Any] = {"symbol": "x", "size": 12, "line": {"color": "@surface", "width": 1.5}}
    ring: dict[str, Any] = {"symbol": "circle-open", "size": 12, "line": {"width": 2}}
    span = {"range": [-reach, reach], "showgrid": False, "constrain": "domain"}
    rows = [[short(x), *map(str, own)] for x, own in zip(steps, counts, strict=True)]
    return Figure(
        f"symmetry-plane-{study.titles.index(title)}",
        "In a random plane",
        f"The probed records' gradients after the last step of {title}, projected on a random "
        "plane about their mean: darker is more records. Symmetric ones look the same turned by "
        "half a circle.",
        [
            f.trace("", steps, steps, "%{z} records", **heat),
            f.marks("mean gradient", [0], [0], "@c6", "the mean", **cross),
            f.marks("zero", [-true[0]], [-true[1]], "@text", "a gradient of zero", **ring),
        ],
        {
            "xaxis": f.axis("first direction", **span),
            "yaxis": f.axis("second direction", **span, scaleanchor="x"),
            "hovermode": "closest",
        },
        Grid(["", *map(short, steps)], rows, caption="Number of records on the plane"),
        [Key("mean gradient", "@c6", "diamond"), Key("zero", "@text", "ring")],
        height=400,
        wide=False,
    )


def _cosines(study: Study, title: str, last: dict[str, Any]) -> Figure | None:
    edges, counts = at(last, "cosines", "edges"), at(last, "cosines", "counts")
    if not edges or not counts or not sum(counts):
        return None
    pairs = list(itertools.pairwise(edges))
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
        for (low, high), count in zip(pairs, counts, strict=True)
    ]
    if skew is not None:
        rows.append(["bias b (Geometric Perspective, Eq. 5)", short(skew)])
    middle = [(low + high) / 2 for low, high in pairs]
    shares = [100 * count / sum(counts) for count in counts]
    width = 0.94 * (edges[1] - edges[0])
    return Figure(
        f"symmetry-cosines-{study.titles.index(title)}",
        "Agreement with the mean",
        f"The cosine of each probed record's gradient with the mean gradient, after the last step "
        f"of {title}.{said}",
        [f.bars("", middle, shares, "@c5", "%{y:.1f}%", width=width)],
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
