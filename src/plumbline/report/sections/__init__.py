"""The page's sections, one file each: a function of what was read, or None if there is nothing."""

from __future__ import annotations

from collections.abc import Callable

from plumbline.report.reading import Study
from plumbline.report.section import Section
from plumbline.report.sections import (
    bending,
    cost,
    curvature,
    curves,
    epsilons,
    norms,
    others,
    progress,
    results,
    risk,
    sensitivity,
    settings,
    spending,
    statement,
    symmetry,
)

SECTIONS: tuple[Callable[[Study], Section | None], ...] = (
    statement.section,
    results.section,
    epsilons.section,
    cost.section,
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
