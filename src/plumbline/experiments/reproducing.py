"""``reproduce``: a paper's table or figure, its published numbers beside ours, and a verdict.

The files of a reproduction (``papers``) name a study, a function from settings to measurements;
``STUDIES`` has them by name. What it measures is judged (``judging``) and shown beside what the
paper printed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

from plumbline.experiments.paper_verdicts import (
    PaperVerdict,
    claim_verdict,
    row_verdict,
    value_verdict,
)
from plumbline.experiments.papers import Size, read
from plumbline.experiments.pool import OnProgress
from plumbline.experiments.recipe import RecipeError, require_known
from plumbline.experiments.studies import STUDIES, Job, Measured, Measurements


@dataclass(frozen=True)
class Line:
    """A published value or claim beside ours.

    Attributes:
        what: The value's row and metric, or the claim in words.
        published: The value; None for a claim.
        ours: At the paper's settings; None where it was not measured.
        tuned: Where every method was tuned alike, if that was measured.
        verdict: What came of it.
    """

    what: str
    verdict: PaperVerdict
    published: float | None = None
    ours: Measured | None = None
    tuned: Measured | None = None


@dataclass(frozen=True)
class Reproduction:
    """A reproduced table or figure.

    Attributes:
        name: The files' name.
        title: What is reproduced.
        size: At which size.
        source: Paper and table.
        notes: From the published file.
        values: Published values beside ours.
        rows: The verdict for each row of values.
        claims: The paper's claims.
        compared: The values that the claims are about.
        folder: Where the runs are.
    """

    name: str
    title: str
    size: Size
    source: str
    notes: tuple[str, ...]
    values: tuple[Line, ...]
    rows: dict[str, PaperVerdict]
    claims: tuple[Line, ...]
    compared: frozenset[str] = field(repr=False)
    measurements: Measurements = field(repr=False)
    folder: str = ""

    def __str__(self) -> str:
        """In Markdown."""
        lines = [f"## {self.title}", "", f"{self.source}. Size: {self.size}. "]
        lines[-1] += f"Command: `plumbline reproduce {self.name} --size {self.size}`."
        if self.values:
            lines += [
                "",
                "| value | published | ours | tuned alike |",
                "| --- | ---: | ---: | ---: |",
            ]
            for line in self.values:
                cells = [line.what, f"{line.published:g}", _shown(line.ours), _shown(line.tuned)]
                lines.append(f"| {' | '.join(cells)} |")
        if self.rows or self.claims:
            lines += ["", "| row or claim | verdict |", "| --- | --- |"]
            lines += [f"| {row} | {verdict} |" for row, verdict in self.rows.items()]
            lines += [f"| {claim.what} | {claim.verdict} |" for claim in self.claims]
        extra = [
            key
            for key in self.measurements.paper
            if key in self.compared and not self._published(key)
        ]
        if extra:
            lines += ["", "| compared by claims | ours | tuned alike |", "| --- | ---: | ---: |"]
            for key in extra:
                tuned = self.measurements.tuned.get(key)
                lines.append(
                    f"| {key} | {_shown(self.measurements.paper[key])} | {_shown(tuned)} |"
                )
        lines += [""] + [f"- {note}" for note in (*self.notes, *self.measurements.notes)]
        return "\n".join(lines).rstrip() + "\n"

    def _published(self, key: str) -> bool:
        return any(line.what == key for line in self.values)


def reproduce(
    name: str,
    size: Size = "quick",
    folder: str | os.PathLike[str] = "runs",
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Reproduction:
    """Makes a paper's table or figure and judges it.

    Args:
        name: One of ``papers.names()``.
        size: "quick" or "paper".
        folder: Where runs are kept; what is finished is not repeated.
        workers: How many runs at a time.
        on_progress: Called with a `Progress` now and then.
    """
    if size not in ("quick", "paper"):
        raise RecipeError(f"size is {size!r}; it must be 'quick' or 'paper'.")
    plan, published = read(name)
    require_known("study", plan.study, list(STUDIES))
    kept = Path(folder) / f"{name}-{size}"
    measured = STUDIES[plan.study](Job(plan.at(size), kept, workers, on_progress))
    values = tuple(
        Line(
            what=f"{row.row} / {metric}",
            published=value,
            ours=(ours := measured.paper.get(f"{row.row} / {metric}")),
            tuned=measured.tuned.get(f"{row.row} / {metric}"),
            verdict=value_verdict(value, ours, published.tolerance_of(metric)),
        )
        for row in published.rows
        for metric, value in row.values.items()
    )
    found = Reproduction(
        name=name,
        title=plan.title,
        size=size,
        source=published.source,
        notes=published.notes,
        values=values,
        rows={row.row: row_verdict(row, published, measured) for row in published.rows},
        claims=tuple(
            Line(what=claim.says, verdict=claim_verdict(claim, measured))
            for claim in published.claims
        ),
        compared=frozenset(key for claim in published.claims for key in claim.keys),
        measurements=measured,
        folder=str(kept),
    )
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "reproduction.md").write_text(str(found), encoding="utf-8")
    return found


def _shown(value: Measured | None) -> str:
    if value is None or math.isnan(value.mean):
        return ""
    error = "" if math.isnan(value.standard_error) else f" ± {value.standard_error:.2g}"
    return f"{value.mean:.4g}{error}"
