"""``reproduce``: a paper's table or figure, its published numbers beside ours, and a verdict.

The files of a reproduction (``papers``) name a study, a function that measures; ``STUDIES`` has
them by name. What it measures is shown beside what the paper printed, with ``paper_verdicts``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.files import make_folder, write_text
from plumbline.experiments.paper_verdicts import (
    PaperVerdict,
    claim_verdict,
    row_verdict,
    value_verdict,
)
from plumbline.experiments.papers import PublishedFile, ReproductionFile, Size, read
from plumbline.experiments.pool import OnProgress
from plumbline.experiments.recipe import RecipeError, require_known
from plumbline.experiments.sharding import workers_for
from plumbline.experiments.studies import STUDIES, Job, Measured, Measurements
from plumbline.results import to_json

_OF_RUNS = "comparison"
"""The study whose runs can be split over a job array; the others measure in one process."""


@dataclass(frozen=True)
class Judged:
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
        size: At which size.
        folder: Where the runs are.
        plan: How the numbers are made.
        published: What the paper printed.
        measurements: What was measured.
    """

    name: str
    size: Size
    folder: str
    plan: ReproductionFile
    published: PublishedFile
    measurements: Measurements

    @property
    def values(self) -> list[Judged]:
        """Published values beside ours."""
        return [
            Judged(
                what=f"{row.row} / {metric}",
                published=value,
                ours=(ours := self.measurements.paper.get(f"{row.row} / {metric}")),
                tuned=self.measurements.tuned.get(f"{row.row} / {metric}"),
                verdict=value_verdict(value, ours, self.published.tolerance_of(metric)),
            )
            for row in self.published.rows
            for metric, value in row.values.items()
        ]

    @property
    def rows(self) -> dict[str, PaperVerdict]:
        """The verdict for each row of values."""
        rows = self.published.rows
        return {row.row: row_verdict(row, self.published, self.measurements) for row in rows}

    @property
    def claims(self) -> list[Judged]:
        """The paper's claims."""
        claims = self.published.claims
        return [Judged(one.says, claim_verdict(one, self.measurements)) for one in claims]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        names = ("name", "size", "folder", "values", "rows", "claims", "measurements")
        facts = {name: to_json(getattr(self, name)) for name in names}
        about = {"title": self.plan.title, "source": self.published.source}
        return {**about, "notes": list(self.published.notes), **facts}

    def __str__(self) -> str:
        """In Markdown."""
        paper, tuned = self.measurements.paper, self.measurements.tuned
        published = {line.what for line in self.values}
        compared = {key for claim in self.published.claims for key in claim.keys} - published
        verdicts = [*self.rows.items(), *((claim.what, claim.verdict) for claim in self.claims)]
        tables: list[tuple[tuple[str, ...], list[Any]]] = [
            (
                ("value", "published", "ours", "tuned alike"),
                [
                    (one.what, f"{one.published:g}", _shown(one.ours), _shown(one.tuned))
                    for one in self.values
                ],
            ),
            (("row or claim", "verdict"), verdicts),
            (
                ("compared by claims", "ours", "tuned alike"),
                [(k, _shown(paper[k]), _shown(tuned.get(k))) for k in paper if k in compared],
            ),
        ]
        command = f"plumbline reproduce {self.name} --size {self.size}"
        about = f"{self.published.source}. Size: {self.size}. Command: `{command}`."
        notes = "\n".join(f"- {n}" for n in (*self.published.notes, *self.measurements.notes))
        shown = [_table(head, rows) for head, rows in tables if rows]
        return "\n\n".join([f"## {self.plan.title}", about, *shown, notes]).rstrip() + "\n"


def reproduce(
    name: str,
    size: Size = "quick",
    folder: str | os.PathLike[str] = "runs",
    *,
    workers: int | None = None,
    shard: str | None = None,
    on_progress: OnProgress | None = None,
) -> Reproduction:
    """Makes a paper's table or figure and judges it.

    Args:
        name: One of ``papers.names()``.
        size: "quick" or "paper".
        folder: Where runs are kept; what is finished is not repeated.
        workers: How many runs at a time.
        shard: A part of the runs, such as "3/16", for a job array.
        on_progress: Called with a `Progress` now and then.

    Raises:
        PartMade: With ``shard``, when that part is made.
    """
    if size not in ("quick", "paper"):
        raise RecipeError(f"size is {size!r}; it must be 'quick' or 'paper'.")
    plan, published = read(name)
    require_known("study", plan.study, list(STUDIES))
    kept = Path(folder) / f"{name}-{size}"
    if shard is not None and plan.study != _OF_RUNS:
        raise RecipeError(f"{name} is not made of runs that can be split: leave out --shard.")
    with workers_for(shard, workers) as pool:
        measured = STUDIES[plan.study](Job(plan.at(size), kept, pool, on_progress))
    found = Reproduction(name, size, str(kept), plan, published, measured)
    make_folder(kept)
    write_text(kept / "reproduction.md", str(found))
    return found


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    ruler = ["---", *["---:"] * (len(head) - 1)] if len(head) > 2 else ["---"] * len(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *rows))


def _shown(value: Measured | None) -> str:
    if value is None or math.isnan(value.mean):
        return ""
    error = "" if math.isnan(value.standard_error) else f" ± {value.standard_error:.2g}"
    return f"{value.mean:.4g}{error}"
