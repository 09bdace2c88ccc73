"""What a page is made from: the recipe, the finished runs, and what they recorded, read once.

A folder is a comparison's (a recipe and the folders of its runs) or that of one run. Only finished
runs count, and only seeds that every method has finished:
pairs of seeds are what tests and costs are made of. What is left out is said.
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from plumbline.experiments.comparing import ComparisonTable, MethodRow, table_of
from plumbline.experiments.files import METRICS, RECIPE, RESULT, VERSIONS, read_rows
from plumbline.experiments.named_code import check_recipe
from plumbline.experiments.probing import FINAL_FILE, readings_of
from plumbline.experiments.recipe import MethodPart, Recipe
from plumbline.experiments.run_result import RunResult, read_result
from plumbline.experiments.run_spec import RunSpec, only_study, read_spec
from plumbline.experiments.table_remarks import table_remarks
from plumbline.experiments.together import Totals, totals_beside
from plumbline.fairness.evaluating import BY_NAME, NUMBERS, OWN_UNIT
from plumbline.fairness.metrics import LOSS
from plumbline.fairness.regression import R2
from plumbline.fairness.remarks import beside_main
from plumbline.report.section import Html

TUNING = "tuning.json"
NONPRIVATE = "nonprivate"


class Shown(NamedTuple):
    """How a metric is shown: its name, by what it is multiplied, its unit, digits and range."""

    title: str
    scale: float
    unit: str
    digits: int
    least: float = 0.0
    most: float = math.inf

    @property
    def axis(self) -> str:
        """The words on an axis."""
        name = self.title if self.title[:2].isupper() else self.title.lower()
        return f"{name} ({self.unit})" if self.unit else name


def shown_metric(name: str) -> Shown:
    """How a metric is shown in figures."""
    title = BY_NAME[name].title
    title = title[0].upper() + title[1:]
    if name in OWN_UNIT:
        return Shown(title, 1.0, "", 1)
    if name in NUMBERS:
        return Shown(title, 1.0, "", 3, most=math.inf if name == LOSS else 1.0)
    return Shown(title, 100.0, "%", 1, least=-math.inf if name == R2 else 0.0, most=100.0)


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        result: Its result.
        metrics: Rows along the way: step, epsilon, metrics of the test part.
        readings: Rows of diagnostics along the way.
        final: What was measured at the end, by name; empty if nothing was.
        versions: What it was run with.
    """

    result: RunResult
    metrics: tuple[dict[str, Any], ...]
    readings: tuple[dict[str, Any], ...]
    final: Mapping[str, Any]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Study:
    """A comparison, or one run as a comparison of one method.

    Attributes:
        recipe: What is shown: the methods and seeds that are finished.
        table: Its table.
        runs: The runs of each method, by its title, in the order of the seeds.
        tuning: The trials that tuned the methods, if there are any.
        single: Whether it is one run.
        folder: Where it was read from.
        left_out: What the recipe has and the page has not, in words.
    """

    recipe: Recipe
    table: ComparisonTable
    runs: Mapping[str, tuple[Run, ...]]
    tuning: Mapping[str, Any] | None
    single: bool
    folder: Path
    left_out: tuple[str, ...] = ()

    @cached_property
    def titles(self) -> list[str]:
        """The methods' titles at the budget's epsilon, rows of one method beside each other."""
        shown = [t for t in self.runs if self.single or self.part(t).epsilon is None]
        order = list(dict.fromkeys(self.base(title) for title in shown))
        return sorted(shown, key=lambda title: order.index(self.base(title)))

    @property
    def main(self) -> str:
        """The metric that methods are first judged by, a share: accuracy, or R² of numbers."""
        return self.table.main

    @property
    def main_title(self) -> str:
        """What that is called."""
        return BY_NAME[self.main].title

    @property
    def metrics(self) -> dict[str, Shown]:
        """The metrics that have figures, the main one first, and how they are shown."""
        overall = self.table.rows[0].seeds.overall
        return {name: shown_metric(name) for name in (self.main, *beside_main(overall))}

    @property
    def table_remarks(self) -> list[Html]:
        """What is said of a table's classes and rows; of several seeds, of the first one's rows."""
        first = self.runs[self.titles[0]][0].result
        said = table_remarks(self.recipe.data, first.rows, first.classes)
        return [Html(f"<p>{html.escape(one)}</p>") for one in said]

    @property
    def epsilons(self) -> list[float]:
        """The epsilons at which methods were run, ascending; empty where there is one."""
        return sorted({*self.recipe.epsilons, self.recipe.budget.epsilon or 0.0} - {0.0})

    @cached_property
    def private(self) -> list[str]:
        """The titles of the methods that have a guarantee."""
        return [title for title in self.titles if math.isfinite(self.row(title).epsilon)]

    @property
    def groups(self) -> list[str]:
        """The groups' names; empty where there is only one."""
        groups = list(self.table.rows[0].seeds.by_group)
        return groups if len(groups) > 1 else []

    @cached_property
    def totals(self) -> Totals:
        """What the released models have cost together, and everything that was run."""
        return totals_beside(self.folder, self.recipe.budget, single=self.single)

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.recipe.seeds)

    def at_epsilons(self, title: str) -> dict[float, str]:
        """The rows of a method by epsilon, ascending: the same settings at each."""
        own = self.part(title)
        if title not in self.private:
            return {self.recipe.budget.epsilon or 0.0: title}
        found = {
            row.epsilon or self.recipe.budget.epsilon or 0.0: row.title
            for row in self.recipe.rows
            if row.model_copy(update={"epsilon": None}) == own and row.title in self.runs
        }
        return dict(sorted(found.items()))

    @cached_property
    def _parts(self) -> dict[str, MethodPart]:
        return {row.title: row for row in self.recipe.rows}

    def part(self, title: str) -> MethodPart:
        """A row of the recipe."""
        return self._parts[title]

    def spec(self, title: str) -> RunSpec:
        """The row's first run, which knows what it has instead of the recipe's."""
        return RunSpec(self.recipe, self.part(title), self.recipe.seeds[0])

    def row(self, title: str) -> MethodRow:
        """A line of the table."""
        return self.table.row(title)

    def base(self, title: str) -> str:
        """What rows of one method that differ in where their settings come from share."""
        return self.part(title).base

    def is_free(self, title: str) -> bool:
        """Whether it is the non-private method."""
        return self.part(title).name == NONPRIVATE

    def measured(self, *names: str) -> list[str]:
        """The titles of the methods that have readings of all of these; those that clip first."""
        found = [
            title
            for title in self.titles
            if any(
                all(name in row for name in names)
                for run in self.runs[title]
                for row in run.readings
            )
        ]
        return sorted(found, key=self.is_free)

    def with_readings(self, title: str, readings: Sequence[dict[str, Any]]) -> Study:
        """The study with other readings of a method's first run."""
        first, *rest = self.runs[title]
        changed = (replace(first, readings=tuple(readings)), *rest)
        return replace(self, runs={**self.runs, title: changed})


def read(folder: str | os.PathLike[str]) -> Study:
    """Reads a comparison's folder, or a run's.

    Raises:
        ValueError: If there is no finished run in it.
    """
    root = only_study(Path(folder))
    path = root / RECIPE
    if not path.is_file():
        raise ValueError(
            f"{root} has no {RECIPE}; give the folder of a comparison or of a run, as `plumbline "
            "compare` and `plumbline train` leave it behind."
        )
    fields = json.loads(path.read_text(encoding="utf-8"))
    if "methods" in fields:
        check_recipe(fields, root)
        return _comparison(Recipe.of(fields, str(path)), root)
    return _single(root)


def _comparison(recipe: Recipe, root: Path) -> Study:
    finished: dict[str, dict[int, Path]] = {}
    for row in recipe.rows:
        folders = {seed: root / RunSpec(recipe, row, seed).folder for seed in recipe.seeds}
        done = {seed: folder for seed, folder in folders.items() if (folder / RESULT).is_file()}
        if done:
            finished[row.title] = done
    if not finished:
        raise ValueError(f"{root} has no finished run yet; start the comparison again to go on.")
    seeds = [seed for seed in recipe.seeds if all(seed in done for done in finished.values())]
    left_out = _left_out(recipe, finished, seeds)
    if not seeds:
        raise ValueError(
            f"In {root} no seed is finished by every method yet; start the comparison again to go "
            "on."
        )
    shown = recipe.model_copy(
        update={
            "methods": tuple(one for one in recipe.methods if one.title in finished),
            "epsilons": tuple(
                epsilon
                for epsilon in recipe.epsilons
                if all(row.title in finished for row in recipe.rows if row.epsilon == epsilon)
            ),
            "seeds": tuple(seeds),
            "baseline": recipe.baseline if recipe.baseline in finished else None,
        }
    )
    kept = {row.title for row in shown.rows}
    runs = {
        title: tuple(_run(done[seed]) for seed in seeds)
        for title, done in finished.items()
        if title in kept
    }
    table = table_of(shown, [run.result for own in runs.values() for run in own])
    return Study(shown, table, runs, _json(root / TUNING), False, root, left_out)


def _single(root: Path) -> Study:
    _require_finished(root)
    recipe, run = read_spec(root).recipe, _run(root)
    table = table_of(recipe, [run.result])
    return Study(recipe, table, {run.result.method: (run,)}, None, True, root)


def _require_finished(root: Path) -> None:
    if not (root / RESULT).is_file():
        raise ValueError(f"The run in {root} is not finished; start it again to go on.")


def _run(folder: Path) -> Run:
    result = read_result(folder)
    assert result is not None  # the caller has looked
    return Run(
        result=result,
        metrics=tuple(read_rows(folder / METRICS)),
        readings=tuple(readings_of(folder)),
        final=_json(folder / FINAL_FILE) or {},
        versions=_json(folder / VERSIONS) or {},
    )


def _left_out(
    recipe: Recipe, finished: Mapping[str, Mapping[int, Path]], seeds: list[int]
) -> tuple[str, ...]:
    said = [
        f"{method.title} has no finished run yet"
        for method in recipe.rows
        if method.title not in finished
    ]
    missing = [seed for seed in recipe.seeds if seed not in seeds]
    if missing:
        said.append(f"seeds that not every method has finished: {', '.join(map(str, missing))}")
    return tuple(said)


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return stored
