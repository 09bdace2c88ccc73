"""What a study is: a function from a job, with its settings, to measurements; by name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from plumbline.data import Splits
from plumbline.experiments.files import VERSIONS, make_folder, read_json, write_json
from plumbline.experiments.loading import load_data
from plumbline.experiments.pool import OnProgress, Workers
from plumbline.experiments.recipe import Recipe, SettingsPart
from plumbline.experiments.run_result import versions
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import started
from plumbline.results import to_json
from plumbline.training import Private

NOT_RECORDED = "not recorded"
FOUND = "found.json"
Kind = TypeVar("Kind", bound=SettingsPart)


@dataclass(frozen=True)
class Measured:
    """A number of ours.

    Attributes:
        mean: Over seeds or repetitions.
        standard_error: Of the mean; NaN with a single one.
        folders: The runs it comes from.
        by_seed: The number of each seed or repetition, by its name.
        bounds: Between which the number lies, where this is known otherwise than from seeds.
        runs: How many seeds or repetitions the mean is over.
    """

    mean: float
    standard_error: float = math.nan
    folders: tuple[str, ...] = ()
    by_seed: dict[str, float] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    runs: int = 1

    @classmethod
    def of(
        cls, values: Sequence[float], folders: Sequence[str] = (), seeds: Sequence[int] = ()
    ) -> Measured:
        """The mean of at least one value, and its standard error."""
        error = math.nan
        if len(values) > 1:
            error = statistics.stdev(values) / math.sqrt(len(values))
        named = dict(zip(map(str, seeds or range(len(values))), values, strict=True))
        return cls(statistics.fmean(values), error, tuple(folders), named, runs=len(values))

    def with_seeds(self, others: Mapping[str, float]) -> Measured:
        """The number over these seeds and others."""
        both = {**self.by_seed, **others}
        return replace(Measured.of(list(both.values()), self.folders), by_seed=both)

    def to_json(self) -> dict[str, Any]:
        """As plain values, without what follows from the others."""
        if self.by_seed:
            return {"by_seed": self.by_seed}
        known: dict[str, Any] = {"mean": self.mean}
        if not math.isnan(self.standard_error):
            known |= {"standard_error": self.standard_error, "runs": self.runs}
        return known if self.bounds is None else {**known, "bounds": list(self.bounds)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Measured:
        """Reads what ``to_json`` wrote."""
        if own := stored.get("by_seed"):
            return replace(cls.of(list(own.values())), by_seed=own)
        given = stored.get("bounds")
        return cls(
            stored["mean"],
            stored.get("standard_error", math.nan),
            bounds=None if given is None else (given[0], given[1]),
            runs=stored.get("runs", 1),
        )


def over_runs(
    name: str, values: Sequence[float], folders: Sequence[str] = (), seeds: Sequence[int] = ()
) -> Measured:
    """The mean over runs; of what is called "largest" or "smallest", the same over all runs."""
    for word, extreme in (("largest", max), ("smallest", min)):
        if name.startswith(word):
            found = extreme(values)
            return Measured(found, folders=tuple(folders), bounds=(found, found))
    return Measured.of(values, folders, seeds)


@dataclass(frozen=True)
class Measurements:
    """What a study measured, by "row / metric" or "row / metric / group".

    Attributes:
        paper: At the paper's settings.
        tuned: With every method tuned alike; empty where that has no meaning or was not done.
        notes: What a reader must know.
        aim: What the tuning aimed at: "accuracy" or "loss".
        made_with: The commit, where the study only reads what was measured before.
    """

    paper: dict[str, Measured]
    tuned: dict[str, Measured] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    aim: str = "accuracy"
    made_with: str | None = None


@dataclass(frozen=True)
class Job:
    """What a study is given.

    Attributes:
        settings: Of its own.
        folder: Where runs and readings are kept.
        workers: How many runs at a time; or processes.
        on_progress: Called with a `Progress` now and then.
    """

    settings: dict[str, Any]
    folder: Path
    workers: int | Workers | None = None
    on_progress: OnProgress | None = None

    def checked(self, kind: type[Kind]) -> Kind:
        """The settings as a part.

        Raises:
            RecipeError: Naming the field, and what is wrong with it.
        """
        return kind.of(self.settings, "the study's settings")


Study = Callable[[Job], Measurements]
STUDIES: dict[str, Study] = {}


def study(name: str) -> Callable[[Study], Study]:
    """Registers a study."""

    def register(make: Study) -> Study:
        STUDIES[name] = make
        return make

    return register


def over_seeds(
    job: Job, recipe: Recipe, measure: Callable[[int, Path], dict[str, float]]
) -> dict[str, Measured]:
    """What ``measure`` finds with each seed of the job's recipe, in a folder of the seed's own.

    A seed that was measured before, with the same settings, is not measured again.
    """
    given = {**job.settings["recipe"], "seeds": None}
    settings = to_json({**job.settings, "recipe": given})
    found: list[dict[str, float]] = []
    for seed in recipe.seeds:
        folder = job.folder / f"seed{seed}"
        kept = read_json(folder / FOUND) if (folder / FOUND).is_file() else {}
        if kept.get("settings") != settings:
            make_folder(folder)
            kept = {"settings": settings, "found": measure(seed, folder)}
            write_json(folder / VERSIONS, versions())
            write_json(folder / FOUND, kept)
        found.append(kept["found"])
    folders = [f"seed{seed}" for seed in recipe.seeds]
    return {
        key: over_runs(key.split(" / ")[1], [one[key] for one in found], folders, recipe.seeds)
        for key in found[0]
    }


def first_run(recipe: Recipe, seed: int) -> tuple[Private, Splits]:
    """A recipe's first row as a run in memory before its first step, and its data.

    For studies that look at it more closely than a probe. Nothing is written, and no ledger is
    kept: what comes of it is a figure, not a model.
    """
    spec = RunSpec(recipe, recipe.methods[0], seed)
    splits = load_data(spec)
    return started(spec, splits), splits
