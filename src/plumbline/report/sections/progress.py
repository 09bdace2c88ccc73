"""Training loss and gradient length of each group along the way.

From Gradient Misalignment, Figs. 3, 8 to 10.
"""

from __future__ import annotations

from plumbline.diagnostics import NOT_COVERED
from plumbline.report import figures as f
from plumbline.report.curve_figures import of_groups, over_steps
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Part, Section, Tabs

_ALL = "all records"
_SHOWN = {
    "loss": ("Training loss", "The loss on the probed training records"),
    "gradient_norm": ("Length of the mean gradient", "The norm of the plain mean gradient"),
}


def section(study: Study) -> Section | None:
    """Two figures for each method."""
    titles = study.measured("progress")
    if not titles:
        return None
    panels: dict[str, list[Part]] = {
        title: [_figure(study, title, name) for name in _SHOWN] for title in titles
    }
    return Section(
        "progress",
        "What training sees of each group",
        "A group whose loss stays high, or whose gradient stays long, is being left behind.",
        [Tabs("Method", panels)],
        NOT_COVERED,
        "The loss and the length of the mean gradient on the probed training records, as in "
        "Gradient Misalignment, Figs. 3 and 8 to 10.",
        "docs/clipping-or-noise.md",
    )


def _figure(study: Study, title: str, name: str) -> Figure:
    shown, sentence = _SHOWN[name]

    def path(whose: str) -> tuple[str, ...]:
        return ("progress", name) if whose == _ALL else ("progress", f"{name}_by_group", whose)

    return over_steps(
        f"progress-{name.replace('_', '-')}-{study.titles.index(title)}",
        shown,
        f"{sentence} of each group after each step, with {title}.",
        of_groups(study, title, path, _ALL),
        f.axis(shown.lower(), rangemode="tozero"),
        whose="records",
        what=shown.lower(),
        hover=".3f",
    )
