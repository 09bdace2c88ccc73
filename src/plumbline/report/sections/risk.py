"""What a private step costs each group, by cause: length, direction, noise.

From Gradient Misalignment, Prop. 2.
"""

from __future__ import annotations

from plumbline.diagnostics import NOT_COVERED
from plumbline.diagnostics.named.risk import TRACE_PROBES
from plumbline.formats import short
from plumbline.report import figures as f
from plumbline.report.curve_figures import of_groups, over_steps
from plumbline.report.measured import mean_reading
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Key, Part, Section, Tabs

_CAUSES = {
    "magnitude": ("length", "@c2"),
    "direction": ("direction", "@c6"),
    "noise": ("noise", "@c4"),
}

_ROOM = {"l": 82, "r": 14, "t": 14, "b": 48}  # for numbers of many digits


def section(study: Study) -> Section | None:
    """For each method, the mean over training and R_dir along it."""
    titles = [title for title in study.measured("excessive_risk") if not study.is_free(title)]
    if not titles:
        return None
    panels: dict[str, list[Part]] = {
        title: [_parts(study, title), _along(study, title)] for title in titles
    }
    return Section(
        "risk",
        "Who pays for a step, and why",
        "How much a private step raises each group's loss above what an ordinary step would leave, "
        "to second order.",
        [Tabs("Method", panels)],
        NOT_COVERED,
        "The terms R_mag, R_dir and R_noise of Gradient Misalignment (Prop. 2): the change of a "
        "group's loss in one step, to second order, split into what the shorter gradient does, "
        "what its wrong direction does, and what noise does. Negative is a gain. They are taken "
        "on the probe's sample of training records, as one batch; R_noise has the trace of a "
        f"group's Hessian from {TRACE_PROBES} of Hutchinson's probes. The paper takes batches, all "
        "records of a group, and 100 probes: name excessive_risk_100 for these.",
        "docs/clipping-or-noise.md",
    )


def _parts(study: Study, title: str) -> Figure:
    groups = study.groups or ["all"]
    found = {
        cause: [mean_reading(study, title, "excessive_risk", g, cause) for g in groups]
        for cause in _CAUSES
    }
    names = [f.label(group) for group in groups]
    traces = [
        f.bars(shown, names, found[cause], tint, "%{y:.3g}")
        for cause, (shown, tint) in _CAUSES.items()
    ]
    table = [
        [group, *(short(found[cause][place]) for cause in _CAUSES)]
        for place, group in enumerate(groups)
    ]
    return Figure(
        f"risk-parts-{study.titles.index(title)}",
        "Excessive risk by cause",
        f"What clipping's change of length, its change of direction, and noise add to each group's "
        f"loss in a step of {title}; the mean over readings.",
        traces,
        {
            "barmode": "group",
            "bargap": 0.35,
            "xaxis": f.axis(showgrid=False),
            "yaxis": f.axis("added loss per step", exponentformat="power"),
            "hovermode": "closest",
            "margin": _ROOM,
        },
        Grid(["group", *(shown for shown, _ in _CAUSES.values())], table),
        [Key(shown, tint, "square") for shown, tint in _CAUSES.values()],
        wide=False,
    )


def _along(study: Study, title: str) -> Figure:
    others = () if study.groups else ("all",)
    return over_steps(
        f"risk-along-{study.titles.index(title)}",
        "Direction error along training",
        f"R_dir of each group: what the wrong direction of {title}'s clipped gradient adds to its "
        "loss in a step.",
        of_groups(study, title, lambda g: ("excessive_risk", g, "direction"), *others),
        f.axis("added loss per step", exponentformat="power"),
        whose="group",
        what="R_dir",
        shapes=[f.rule(0.0, along="y")],
        margin=_ROOM,
    )
