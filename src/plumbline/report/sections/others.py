"""Whatever else was measured: a curve along the run for each number, a table for those at its end.

A diagnostic that has no section of its own, one from outside among them, is shown here.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from plumbline.diagnostics import DIAGNOSTICS, NOT_COVERED
from plumbline.formats import finite, short
from plumbline.report import figures as f
from plumbline.report.curve_figures import of_methods, over_steps
from plumbline.report.measured import at
from plumbline.report.reading import Study
from plumbline.report.section import Figure, Grid, Html, Part, Section, Tabs

FACTS = ("label", "step", "epsilon", "records")
ELSEWHERE = (
    *("bias", "errors", "norms", "symmetry", "progress", "excessive_risk", "hessian"),
    *("spectrum", "density", "landscape", "interpolation"),
)
"""What other sections show."""

Path = tuple[str, ...]


def section(study: Study) -> Section | None:
    """A heading for each diagnostic, and its numbers."""
    parts: list[Part] = []
    for name in _names(study, end=False):
        figures = {
            " / ".join(path) or name: [_figure(study, name, path, place)]
            for place, path in enumerate(_paths(study, name, end=False))
        }
        if figures:
            parts += [_heading(name), Tabs("Number", figures)]
    for name in _names(study, end=True):
        if (table := _table(study, name)).rows:
            parts += [_heading(name), table]
    if not parts:
        return None
    return Section(
        "others",
        "Other measurements",
        "What else the recipe measured of the probed records, along training and at its end.",
        parts,
        NOT_COVERED,
        "Every diagnostic that a recipe can name is on this page; those without a section of their "
        "own are here, number by number: curves are means over seeds, with their range.",
        "docs/clipping-or-noise.md",
    )


def _rows(study: Study, title: str, *, end: bool) -> Iterator[dict[str, Any]]:
    for run in study.runs[title]:
        yield from [dict(run.final)] if end else run.readings


def _names(study: Study, *, end: bool) -> list[str]:
    """The diagnostics that have no section of their own, in the order of the recipe."""
    found = [name for title in study.titles for row in _rows(study, title, end=end) for name in row]
    return [name for name in dict.fromkeys(found) if name not in (*FACTS, *ELSEWHERE)]


def _paths(study: Study, name: str, *, end: bool) -> list[Path]:
    """Where the numbers of a diagnostic are, within its results."""
    found: dict[Path, None] = {}
    for title in study.titles:
        for row in _rows(study, title, end=end):
            found |= dict.fromkeys(_numbers(row.get(name)))
    return list(found)


def _numbers(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, (*path, key))
    elif finite(value) is not None:
        yield path


def _heading(name: str) -> Html:
    known = DIAGNOSTICS.get(name)
    said = ((known.make.__doc__ if known else "") or "").partition("\n")[0]
    title = html.escape(name.replace("_", " ").capitalize())
    return Html(f'<h3>{title}</h3><p class="sentence">{html.escape(said)}</p>')


def _figure(study: Study, name: str, path: Path, place: int) -> Figure:
    what = " / ".join(path) or name
    said = ", ".join([name.replace("_", " ").capitalize(), *path])
    lines = of_methods(study, study.measured(name), lambda row: at(row, name, *path))
    return over_steps(
        f"others-{_slug(name)}-{place}",
        "",
        f"{said}, at every reading.",
        {title: one for title, one in lines.items() if one.curve.steps},
        f.axis(f.label(what.replace("_", " "), 40)),
        what=what,
        wide=True,
    )


def _table(study: Study, name: str) -> Grid:
    def cell(title: str, path: Path) -> str:
        return short(at(dict(study.runs[title][0].final), name, *path))

    rows = [
        [" / ".join(path) or name, *(cell(title, path) for title in study.titles)]
        for path in _paths(study, name, end=True)
    ]
    return Grid(["number", *study.titles], rows, caption="At the end of the first seed's run")


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
