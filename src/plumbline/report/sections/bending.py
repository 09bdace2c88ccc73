"""How clipping bends the gradient: the true one, and what is left of it.

The two vectors of Bias-Aware Minimisation, Fig. 7 and Gradient Misalignment, Fig. 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plumbline.diagnostics import NOT_COVERED
from plumbline.formats import angle, degrees, finite, number, short
from plumbline.report import figures as f
from plumbline.report.curve_figures import of_methods
from plumbline.report.measured import Bend, at, bend
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

_ALONG = "the median over its readings"


def section(study: Study) -> Section | None:
    """The vectors, the bias over training, the angle by group, and the error by cause."""
    bends = {t: found for t in study.measured("bias") if (found := bend(study.runs[t])) is not None}
    clipped = {title: found for title, found in bends.items() if not study.is_free(title)}
    if not clipped:
        return None
    panels: dict[str, list[Part]] = {
        "Length and direction": [_vectors(study, clipped, "full", _ALONG)],
        "Direction only": [_vectors(study, clipped, "unit", _ALONG)],
    }
    ends = {t: found for t in clipped if (found := bend(study.runs[t], last=True)) is not None}
    if ends and max(len(run.readings) for runs in study.runs.values() for run in runs) > 1:
        at_end = _vectors(study, ends, "end", "at the last reading of each run")
        panels["Direction at the end"] = [at_end]
    parts: list[Part] = [Tabs("Vectors", panels), _bias(study, list(clipped))]
    if study.groups:
        parts.append(_groups(study, list(clipped)))
    if errors := _errors(study):
        parts.append(errors)
    return Section(
        "bending",
        "How clipping bends the gradient",
        "What a method releases, before the noise, beside the plain mean gradient: clipping "
        "shortens it, which a learning rate can mend, and turns it, which none can.",
        parts,
        NOT_COVERED,
        "The true gradient g is the plain mean gradient of the probed records, which non-private "
        "SGD would take. The clipped mean is what the method would release before the noise: its "
        "own gradients (on views, at BAM's weights, averaged in buckets), clipped. It is a g + c, "
        "c at a right angle to g: a is what is left of the gradient, c points elsewhere "
        "(Bias-Aware Minimisation, Theorem 1 and Fig. 7; Gradient Misalignment, Fig. 1). A "
        "learning rate 1/a times as large undoes the first; nothing undoes the second. The bias "
        "is the difference of the two; read its norm together with the angle.",
        "docs/clipping-or-noise.md",
    )


def _vectors(study: Study, bends: dict[str, Bend], kind: str, when: str) -> Figure:
    """The true gradient along the horizontal axis, and each method's clipped one from its tail."""
    unit = kind != "full"
    traces = [_tip("true gradient", 1.0, 0.0, "@text", "length 1")]
    arrows = [_arrow(1.0, 0.0, "@text")]
    shapes: list[dict[str, Any]] = []
    rows = []
    tips = [(1.0, 0.0), (0.0, 0.0)]
    for title, found in bends.items():
        size = (found.length or 1.0) if unit else 1.0
        x, y = found.kept / size, found.turned / size
        tips.append((x, y))
        tint = f.colour(study, title)
        arrows.append(_arrow(x, y, tint))
        look = {"color": tint, "width": 1.2, "dash": "dot"}
        shapes.append({"type": "line", "x0": x, "x1": x, "y0": 0, "y1": y, "line": look})
        said = f"bias {found.relative:.2f} |g|, {found.degrees:.0f}° off"
        traces.append(_tip(title, x, y, tint, said))
        lengths = [number(found.kept), number(found.turned), short(found.norm)]
        turned = [number(found.relative), degrees(found.degrees, 1), f"{found.readings}"]
        rows.append([title, *lengths, *turned])
    left, right = min(x for x, _ in tips), max(x for x, _ in tips)
    top = max(y for _, y in tips)
    room = 0.08 * max(right - left, top)
    square = {"scaleanchor": "x", "scaleratio": 1, "constrain": "domain"}
    what = "only its direction matters here" if unit else "its length is taken for 1"
    head = ["method", "left of it", "away from it", "bias", "relative", "angle", "readings"]
    return Figure(
        f"bending-vectors-{kind}",
        "The true gradient and what clipping leaves of it",
        f"The mean gradient lies along the horizontal axis ({what}); each arrow is the mean "
        f"clipped gradient of a method, {when}.",
        traces,
        {
            "xaxis": f.axis("along the true gradient", range=[left - room, right + room]),
            "yaxis": f.axis("away from it", range=[-room, top + 1.5 * room], **square),
            "annotations": arrows,
            "shapes": shapes,
            "hovermode": "closest",
        },
        Grid(head, rows),
        [Key("true gradient", "@text", "line"), *f.method_keys(study, list(bends))],
        height=330,
    )


def _arrow(x: float, y: float, tint: str) -> dict[str, Any]:
    """From the origin."""
    refs = {"xref": "x", "yref": "y", "axref": "x", "ayref": "y"}
    look = {"arrowhead": 2, "arrowsize": 1.1, "arrowwidth": 3, "arrowcolor": tint}
    return {"x": x, "y": y, "ax": 0, "ay": 0, "text": "", "showarrow": True, **refs, **look}


def _tip(name: str, x: float, y: float, tint: str, said: str) -> dict[str, Any]:
    """What is hovered over at the tip of an arrow."""
    return f.marks(name, [x], [y], tint, said, size=14, opacity=0.15)


_PANELS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "norm": ("norm of the bias", "y", lambda value: value),
    "relative": ("relative to |g|", "y2", lambda value: value),
    "cosine": ("angle (°)", "y3", angle),
}


def _bias(study: Study, titles: list[str]) -> Figure:
    """The bias over training: its norm, its relative norm, and the angle, below each other."""
    traces: list[dict[str, Any]] = []
    cells: dict[tuple[str, float], list[str]] = {}
    for name, (_, axis, of) in _PANELS.items():
        lines = of_methods(study, titles, lambda row, name=name, of=of: of(at(row, "bias", name)))  # type: ignore[misc]
        for title, one in lines.items():
            drawn = f.line(title, one.curve, one.colour, dash=one.dash, hover=".3g")
            traces += [{**trace, "yaxis": axis} for trace in drawn]
            for step, value in zip(one.curve.steps, one.curve.mean, strict=True):
                cells.setdefault((title, step), []).append(short(value))
    rows = [[title, f"{step:,}", *own] for (title, step), own in cells.items()]
    heights = ([0.7, 1.0], [0.35, 0.65], [0.0, 0.3])
    axes = {
        axis.replace("y", "yaxis"): f.axis(words, domain=domain, rangemode="tozero", nticks=4)
        for (words, axis, _), domain in zip(_PANELS.values(), heights, strict=True)
    }
    return Figure(
        "bending-bias",
        "The bias along training",
        "How far the clipped mean gradient lies from the true one: the norm of the difference, "
        "the same in lengths of the true gradient, and the angle between the two. A method can "
        "lower the first without turning the gradient back.",
        traces,
        {"xaxis": f.steps_axis(anchor="y3"), **axes},
        Grid(["method", "step", "norm", "relative", "angle (°)"], rows, caption="Bias over steps"),
        f.method_keys(study, titles),
        height=520,
    )


def _groups(study: Study, titles: list[str]) -> Figure:
    """The angle of each group's own clipped gradient."""
    traces: list[dict[str, Any]] = []
    rows = [[title] for title in titles]
    head = ["method", *(f"{group}{what}" for group in study.groups for what in ("", ", bias"))]
    for place, (group, offset) in enumerate(f.offsets(study.groups).items()):
        found = [bend(study.runs[title], group) for title in titles]
        known = [(i, b) for i, b in enumerate(found) if b is not None]
        x, y = [b.degrees for _, b in known], [i + offset for i, _ in known]
        tint, symbol = f.group_colour(place), f.group_symbol(place)
        traces.append(f.marks(group, x, y, tint, "%{x:.0f}°", symbol=symbol))
        for row, one in zip(rows, found, strict=True):
            row += [degrees(one and one.degrees, 1), number(one and one.relative)]
    return Figure(
        "bending-groups",
        "Whose gradient is turned",
        "How far clipping turns the mean gradient of each group's own records; the median over "
        "readings.",
        traces,
        f.by_name(titles, f.axis("degrees", rangemode="tozero")),
        Grid(head, rows, caption="Angle, and bias in lengths of the true gradient, by group"),
        f.group_keys(study.groups),
        height=110 + 52 * len(titles),
    )


_CAUSES = {"bias": ("clipping", "@c6"), "noise": ("noise", "@c2"), "sampling": ("batch", "@c4")}


def _errors(study: Study) -> Figure | None:
    """What the error of one released gradient is made of."""
    shares: dict[str, dict[str, float]] = {}
    for title in study.measured("errors"):
        if study.is_free(title):
            continue
        rows = (row["errors"] for run in study.runs[title] for row in run.readings)
        known = [
            [v for name in _CAUSES if (v := finite(one.get(name))) is not None] for one in rows
        ]
        if whole := [own for own in known if len(own) == len(_CAUSES) and sum(own) > 0]:
            shares[title] = {
                name: sum(own[place] / sum(own) for own in whole) / len(whole)
                for place, name in enumerate(_CAUSES)
            }
    if not shares:
        return None
    titles = list(shares)
    traces = []
    for name, (shown, tint) in _CAUSES.items():
        x, y = [100 * shares[title][name] for title in titles], range(len(titles))
        traces.append(f.bars(shown, x, y, tint, "%{x:.0f}%", orientation="h", width=0.55))
    table = [[t, *(f"{100 * shares[t][name]:.1f}" for name in _CAUSES)] for t in titles]
    across = f.axis("share of the squared error (%)", range=[0, 100])
    return Figure(
        "bending-errors",
        "What one released gradient's error is made of",
        "The expected squared error of a single step by cause. Noise and the choice of the batch "
        "average out over many steps; what clipping adds does not.",
        traces,
        f.by_name(titles, across, barmode="stack"),
        Grid(["method", *(f"{shown} %" for shown, _ in _CAUSES.values())], table),
        [Key(shown, tint, "square") for shown, tint in _CAUSES.values()],
        height=110 + 46 * len(titles),
    )
