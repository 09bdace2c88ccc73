"""``reproduce``: a paper's table or figure, its published numbers beside ours, and a verdict.

The files of a reproduction (``papers``) name a study, a function that measures; ``STUDIES`` has
them by name. What it measures is judged by ``paper_verdicts``, and kept as ``reproduction.json``,
from which ``reproduction_text`` can write the same page again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.engines import workers_for
from plumbline.experiments.files import VERSIONS, make_folder, read_json, write_json
from plumbline.experiments.paper_verdicts import (
    ClaimOutcome,
    PaperVerdict,
    claim_outcome,
    row_verdict,
    value_verdict,
)
from plumbline.experiments.papers import SIZES, PublishedFile, ReproductionFile, Size, names, read
from plumbline.experiments.pool import OnProgress
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_result import commit
from plumbline.experiments.settings import require_known
from plumbline.experiments.studies import STUDIES, Job, Measured, Measurements
from plumbline.experiments.studies.base import NOT_RECORDED
from plumbline.experiments.studies.comparison import BEST, FIRST, LAST, best_rows
from plumbline.results import to_json

_OF_RUNS = "comparison"
"""The study whose runs can be split over a job array; the others measure in one process."""
RESULT = "reproduction.json"


@dataclass(frozen=True)
class Judged:
    """A published value beside ours.

    Attributes:
        what: The value's row and metric.
        published: The value.
        ours: At the paper's settings; None where it was not measured.
        tuned: Where every method was tuned alike, if that was measured.
        verdict: What came of it.
    """

    what: str
    verdict: PaperVerdict
    published: float
    ours: Measured | None = None
    tuned: Measured | None = None


@dataclass(frozen=True)
class Reproduction:
    """A reproduced table or figure.

    Attributes:
        name: The files' name.
        size: At which size.
        plan: How the numbers are made.
        published: What the paper printed.
        measurements: What was measured.
        commits: The commits of Plumbline that it was made with.
        folder: Where the runs are; empty if it was read from a file.
    """

    name: str
    size: Size
    plan: ReproductionFile
    published: PublishedFile
    measurements: Measurements
    commits: tuple[str, ...]
    folder: str = ""

    @property
    def values(self) -> list[Judged]:
        """Published values beside ours; judged at the paper's size only."""
        return [
            Judged(
                what=f"{row.row} / {metric}",
                published=value,
                ours=(ours := self.measurements.paper.get(f"{row.row} / {metric}")),
                tuned=self.measurements.tuned.get(f"{row.row} / {metric}"),
                verdict=PaperVerdict.NOT_JUDGED
                if self.size != "paper"
                else value_verdict(value, ours, self.published.tolerance_of(metric)),
            )
            for row in self.published.rows
            for metric, value in row.values.items()
        ]

    @property
    def rows(self) -> dict[str, PaperVerdict]:
        """The verdict for each row of values."""
        rows = self.published.rows
        if self.size != "paper":
            return {row.row: PaperVerdict.NOT_JUDGED for row in rows}
        return {row.row: row_verdict(row, self.published, self.measurements) for row in rows}

    @property
    def claims(self) -> dict[str, ClaimOutcome]:
        """What came of the paper's claims."""
        return {
            one.says: self._outcome(claim_outcome(one, self.measurements))
            for one in self.published.claims
        }

    def _outcome(self, found: ClaimOutcome) -> ClaimOutcome:
        if self.size == "paper" or self.size in self.plan.answers:
            return found
        return ClaimOutcome(PaperVerdict.NOT_JUDGED, "", found.parts)

    @property
    def another_network(self) -> bool:
        """Whether it was made with another network than the paper's."""
        return self.plan.network(self.size) != self.plan.network("paper")

    def to_json(self) -> dict[str, Any]:
        """As plain values, with the verdicts."""
        names = ("name", "size", "folder", "values", "rows", "claims", "measurements", "commits")
        facts = {name: to_json(getattr(self, name)) for name in names}
        about = {"title": self.plan.title, "source": self.published.source}
        return {**about, "notes": list(self.published.notes), **facts}

    def kept(self) -> dict[str, Any]:
        """What is kept in a file: the measurements that the published file is about."""
        used = self._keys
        metrics = {key.split(" / ")[1] for key in used} | {"accuracy", "loss"}

        def chosen(column: Mapping[str, Measured]) -> dict[str, Any]:
            return {
                key: value.to_json()
                for key, value in sorted(column.items())
                if key.split(" / ")[1] in metrics
                and (key in used or not any(word in key for word in (BEST, FIRST, LAST)))
                and not math.isnan(value.mean)
            }

        found = self.measurements
        part = {"commits": list(self.commits), "paper": chosen(found.paper)}
        part |= {"tuned": chosen(found.tuned), "aim": found.aim, "notes": list(found.notes)}
        return {"name": self.name, "size": self.size, "parts": [part]}

    @property
    def _keys(self) -> set[str]:
        stated = {value.what for value in self.values}
        return stated | {key for claim in self.published.claims for key in claim.keys}


def reproduce(
    name: str,
    size: Size = "quick",
    folder: str | os.PathLike[str] = "runs",
    *,
    seeds: Sequence[int] | None = None,
    workers: int | None = None,
    shard: str | None = None,
    ray: str | None = None,
    on_progress: OnProgress | None = None,
) -> Reproduction:
    """Makes a paper's table or figure and judges it.

    Args:
        name: One of ``papers.names()``.
        size: "quick", "answer" or "paper".
        folder: Where runs are kept; what is finished is not repeated.
        seeds: In place of the size's own.
        workers: How many runs at a time.
        shard: A part of the runs, such as "3/16", for a job array.
        ray: The address of a Ray cluster that makes the runs.
        on_progress: Called with a `Progress` now and then.

    Raises:
        PartMade: With ``shard``, when that part is made.
    """
    plan, published = read(name)
    _require_size(name, plan, size)
    require_known("study", plan.study, list(STUDIES))
    kept, runs = (Path(folder) / f"{one}-{size}" for one in (name, plan.same_runs or name))
    if (shard or ray) is not None and plan.study != _OF_RUNS:
        raise RecipeError(
            f"{name} is not made of runs that can be split: leave out --shard and --ray."
        )
    with workers_for(shard, workers, ray) as pool:
        measured = STUDIES[plan.study](Job(plan.at(size, seeds), runs, pool, on_progress))
    made_with = _commits(runs, measured)
    found = Reproduction(name, size, plan, published, measured, made_with, str(runs))
    make_folder(kept)
    write_json(kept / RESULT, found.kept())
    return found


def reproduce_all(
    size: Size,
    hours: float,
    folder: str | os.PathLike[str] = "runs",
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Reproduction]:
    """Makes what fits into the hours, most valuable first, one seed after the other.

    Yields:
        Each one after each of its seeds. What is finished is not repeated, so that a second call
        goes on where the first ended.
    """
    end = time.monotonic() + 3600 * hours
    for name in in_order(size):
        plan = read(name)[0]
        seeds = plan.seeds(size)
        parts = max(1, len(seeds))
        for count in range(1, parts + 1):
            fits = time.monotonic() + 60 * plan.minutes[size] / parts <= end
            if not fits:  # nor if the hours are not a number
                break
            own = seeds[:count]
            yield reproduce(name, size, folder, seeds=own, workers=workers, on_progress=on_progress)


def in_order(size: Size) -> list[str]:
    """The reproductions that have a size, most valuable first, and the shorter ones before."""
    plans = {name: read(name)[0] for name in names()}
    there = [name for name, plan in plans.items() if size in plan.minutes]
    return sorted(there, key=lambda name: (plans[name].priority, plans[name].minutes[size]))


def read_reproduction(path: Path) -> Reproduction:
    """A reproduction from its file, judged by the published file of today.

    A later part of the file replaces what earlier ones have; one that is marked ``more_seeds``
    adds its seeds to theirs, and the best rows of sweeps are chosen again, by all seeds.
    """
    stored = read_json(path)
    plan, published = read(stored["name"])
    paper: dict[str, Measured] = {}
    tuned: dict[str, Measured] = {}
    for part in stored["parts"]:
        for column, kept in ((paper, part["paper"]), (tuned, part["tuned"])):
            for key, value in kept.items():
                found = Measured.from_json(value)
                more = part.get("more_seeds", False) and key in column
                column[key] = column[key].with_seeds(found.by_seed) if more else found
    if plan.study == _OF_RUNS and any(part.get("more_seeds") for part in stored["parts"]):
        paper |= best_rows(plan.at(stored["size"]), paper)
    last = stored["parts"][-1]
    measured = Measurements(paper, tuned, tuple(last["notes"]), last["aim"])
    commits = {one for part in stored["parts"] for one in part["commits"]}
    return Reproduction(
        stored["name"], stored["size"], plan, published, measured, tuple(sorted(commits))
    )


def _require_size(name: str, plan: ReproductionFile, size: Size) -> None:
    if size not in SIZES:
        raise RecipeError(f"size is {size!r}; it must be one of {', '.join(SIZES)}.")
    if size not in plan.minutes:
        there = ", ".join(one for one in SIZES if one in plan.minutes)
        raise RecipeError(f"{name} has no size {size!r}; it has {there}.")


def _commits(root: Path, measured: Measurements) -> tuple[str, ...]:
    """What the runs were made with; this commit where a study has no runs of its own."""
    if measured.made_with is not None:
        return (measured.made_with,)
    both = (*measured.paper.values(), *measured.tuned.values())
    folders = {folder for one in both for folder in one.folders}
    found = {read_json(root / one / VERSIONS).get("commit") for one in folders} or {commit()}
    return tuple(sorted(one or NOT_RECORDED for one in found))
