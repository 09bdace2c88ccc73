"""How long the records' gradients are, and where the clip bound cuts."""

from __future__ import annotations

import itertools

from plumbline.diagnostics import NOT_COVERED
from plumbline.formats import finite, percent, short
from plumbline.report import figures as f
from plumbline.report.measured import Curve, at, curve
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

_SHARES = {"0.05": "5%", "0.25": "25%", "0.5": "50%", "0.75": "75%", "0.95": "95%"}


def section(study: Study) -> Section | None:
    """A histogram and a fan over training for each method."""
    panels: dict[str, list[Part]] = {}
    for title in study.measured("norms"):
        drawn = [figure for figure in (_histogram(study, title), _fan(study, title)) if figure]
        if drawn:
            panels[title] = [*drawn]
    if not panels:
        return None
    return Section(
        "norms",
        "Gradient lengths and the clip line",
        "The gradients that the method clips: those longer than the clip line are scaled down "
        "further than the others; the further the lengths lie apart, the more that bends their "
        "mean.",
        [Tabs("Method", panels)],
        NOT_COVERED,
        "The gradients are those that the method clips. Histograms count the probed records by "
        "their norm; no record's own norm is stored. A record is clipped if it is scaled down "
        "further than a short one would be: under Global-Adapt, records within its bound are all "
        "scaled alike, and none of these is. Where a method moves its bound, the dashed line moves "
        "with it.",
        "docs/clipping-or-noise.md",
    )


def _histogram(study: Study, title: str) -> Figure | None:
    """The last reading of the first seed."""
    readings = [row["norms"] for row in study.runs[title][0].readings if "norms" in row]
    last = readings[-1] if readings else {}
    edges = at(last, "histogram", "edges") or []
    counts: dict[str, list[int]] = at(last, "histogram", "counts") or {}
    if len(edges) < 2 or "all" not in counts:
        return None
    pairs = list(itertools.pairwise(edges))
    middle, hover = [(low * high) ** 0.5 for low, high in pairs], "%{y:.1f}%"

    def shares(own: list[int]) -> list[float]:
        return [100 * count / max(1, sum(own)) for count in own]

    widths = [0.94 * (high - low) for low, high in pairs]
    everyone = shares(counts["all"])
    traces = [f.bars("all records", middle, everyone, "@muted/45", hover, width=widths)]
    keys = [Key("all records", "@muted", "square")]
    for place, group in enumerate(study.groups):
        if sum(counts.get(group, [])):
            tint, own = f.group_colour(place), shares(counts[group])
            traces.append(f.path(group, middle, own, tint, hover, shape="hvh"))
            keys.append(Key(group, tint, "line"))
    clip, share = finite(last.get("clip")), finite(last.get("clipped"))
    said = "" if share is None else f"; {percent(share, digits=0)} are clipped"
    rows = [
        [f"{short(low)} to {short(high)}", *(str(own[place]) for own in counts.values())]
        for place, (low, high) in enumerate(pairs)
    ]
    return Figure(
        f"norms-histogram-{study.titles.index(title)}",
        "At the end of training",
        f"The norms of the gradients that {title} clips, of the probed records after the last "
        f"step{said}. Lines are the groups' own distributions.",
        traces,
        {
            "xaxis": f.log_axis("gradient norm"),
            "yaxis": f.axis("records (%)"),
            "shapes": [] if clip is None else [f.rule(clip, text=f" clip {short(clip)}")],
            "bargap": 0,
        },
        Grid(["norm", *counts], rows, caption="Number of records by gradient norm"),
        keys,
        wide=False,
    )


def _fan(study: Study, title: str) -> Figure | None:
    """The median, the middle half and the middle nine tenths over training."""
    readings = [run.readings for run in study.runs[title]]

    def flat(*path: str) -> Curve:
        found = curve(readings, lambda row: at(row, "norms", *path))
        return Curve(found.steps, found.mean, found.mean, found.mean)

    fan = [flat("quantiles", share) for share in _SHARES]
    low, first, middle, third, high = fan
    if not middle.steps:
        return None
    traces = [
        f.band(middle.steps, below.mean, above.mean, f"@c5/{strength}")
        for below, above, strength in ((low, high, 14), (first, third, 28))
    ]
    traces += f.line("median", middle, "@c5")
    keys = [Key("median", "@c5", "line")]
    bound = flat("clip")
    if bound.steps:
        traces += f.line("clip bound", bound, "@text", dash="dash")
        keys.append(Key("clip bound", "@text", "dash"))
    rows = [
        [f"{step:,}", *(short(own.mean[place]) for own in fan)]
        for place, step in enumerate(middle.steps)
        if all(own.steps == middle.steps for own in fan)
    ]
    return Figure(
        f"norms-fan-{study.titles.index(title)}",
        "Along training",
        f"The median gradient norm with {title}, and in bands the middle half and the middle nine "
        "tenths of the records.",
        traces,
        {"xaxis": f.steps_axis(), "yaxis": f.log_axis("gradient norm")},
        Grid(["step", *_SHARES.values()], rows, caption="Quantiles of the norms"),
        keys,
        wide=False,
    )
