"""The page's sections, one file each: a function of what was read, or None if there is nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plumbline.report.learning import in_order
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Section
from plumbline.report.sections import (
    bending,
    cost,
    curvature,
    curves,
    epsilons,
    learned,
    norms,
    others,
    progress,
    reliability,
    results,
    risk,
    sensitivity,
    settings,
    spending,
    statement,
    sweep,
    symmetry,
)

SECTIONS: tuple[Callable[[Study], Section | None], ...] = (
    learned.section,
    results.section,
    epsilons.section,
    sweep.section,
    cost.section,
    reliability.section,
    statement.section,
    spending.section,
    curves.section,
    bending.section,
    risk.section,
    progress.section,
    norms.section,
    symmetry.section,
    curvature.section,
    others.section,
    sensitivity.section,
    settings.section,
)
"""In the page's order, after the verdict."""


def above_the_fold(study: Study) -> tuple[str, Sequence[Figure]]:
    """The figures that a page begins with, and the section that says how to read them."""
    if study.single:
        return "learned", learned.figures(study)
    if len(study.epsilons) > 1:
        return "epsilons", [epsilons.figure(study, in_order(study)[0], "headline")]
    return "results", [results.headline(study)]
