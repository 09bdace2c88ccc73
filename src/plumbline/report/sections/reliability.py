"""Reliability: predicted probabilities beside how often they come true, of all and by group."""

from __future__ import annotations

from plumbline.fairness import NOT_COVERED, Bin
from plumbline.fairness.metrics import CALIBRATION
from plumbline.formats import number, percent
from plumbline.report import figures as f
from plumbline.report.estimates import ALL
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

_FEW = 3  # groups up to which all are drawn at once; of more, those that the reader asks for


def section(study: Study) -> Section | None:
    """A figure for each method of a comparison; a single run has it on top."""
    found = {title: one for title in study.titles if (one := figure(study, title)) is not None}
    if study.single or not found:
        return None
    panels: dict[str, list[Part]] = {title: [one] for title, one in found.items()}
    return Section(
        "reliability",
        "Can its probabilities be believed?",
        "What was predicted with a probability, beside how often it came true.",
        [Tabs("Method", panels)],
        NOT_COVERED,
        "Records are put into ten bins of equally many by their probability: of the second class "
        "where there are two, of the predicted class otherwise. On the dashed line a probability "
        "of 30% comes true for 30% of the records. The calibration error is the mean distance from "
        "it for the predicted class, in 15 bins of equal width (Guo et al., 2017). The run of the "
        "first seed is shown.",
        "docs/fairness.md",
    )


def figure(study: Study, title: str) -> Figure | None:
    """The reliability of a method's first run; None where it predicts no probabilities."""
    report = study.runs[title][0].result.report
    if not report.reliability:
        return None
    shown: dict[str, tuple[Bin, ...]] = {ALL: report.reliability}
    shown |= {group: own for group, own in report.reliability_by_group.items() if own}
    traces, keys, rows = [], [], []
    for whose, bins in shown.items():
        place = study.groups.index(whose) if whose in study.groups else None
        tint = "@text" if place is None else f.group_colour(place)
        dash = "solid" if place is None else f.group_dash(place)
        x, y = [100 * one.predicted for one in bins], [100 * one.observed for one in bins]
        drawn = f.path(whose, x, y, tint, "%{x:.1f}%: %{y:.1f}%", dash=dash)
        width = 2.5 if place is None else 1.5
        drawn["line"] |= {"width": width}
        drawn |= {"mode": "lines+markers", "marker": {"color": tint, "size": 7}}
        traces.append(drawn)
        shown_first = place is None or len(study.groups) <= _FEW
        keys.append(Key(whose, tint, "line" if dash == "solid" else "dash", shown_first))
        rows += [
            [whose, percent(one.predicted), percent(one.observed), f"{one.records:,}"]
            for one in bins
        ]
    most = max(max(trace["x"] + trace["y"]) for trace in traces)
    ends = [0, min(100.0, 1.08 * most) or 1.0]
    diagonal = {
        "type": "line", "x0": 0, "y0": 0, "x1": ends[1], "y1": ends[1],
        "line": {"color": "@muted", "width": 1.5, "dash": "dash"},
    }  # fmt: skip
    error = number(report.overall.get(CALIBRATION))
    ask = " A name above shows or hides its group." if len(study.groups) > _FEW else ""
    what = "the predicted class"
    if len(study.runs[title][0].result.classes) == 2:
        what = f"“{study.runs[title][0].result.classes[1]}”"
    return Figure(
        f"reliability-{study.titles.index(title)}",
        "Predicted and observed",
        f"How often {what} came true against the probability that was predicted; on the dashed "
        f"line it does as often as predicted. The calibration error is {error}.{ask}",
        traces,
        {
            "xaxis": f.axis("predicted (%)", range=ends),
            "yaxis": f.axis("observed (%)", range=ends),
            "shapes": [diagonal],
            "hovermode": "closest",
        },
        Grid(["records", "predicted", "observed", "number"], rows, caption="Reliability"),
        keys,
        wide=False,
    )
