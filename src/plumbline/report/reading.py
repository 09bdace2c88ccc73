"""What a page is made from: the recipe, the finished runs, and what they recorded, read once.

A folder is a comparison's (a recipe and the folders of its runs) or that of one run, of a recipe or
on a table of one's own. Only finished runs count, and only seeds that every method has finished:
pairs of seeds are what tests and costs are made of. What is left out is said.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.comparing import Comparison, MethodRow, table_of
from plumbline.experiments.files import METRICS, RECIPE, RESULT, SETTINGS, VERSIONS, read_rows
from plumbline.experiments.probing import DIAGNOSTICS, FINAL_FILE
from plumbline.experiments.recipe import (
    BudgetPart,
    DataPart,
    MethodPart,
    ModelPart,
    OptimizerPart,
    Recipe,
)
from plumbline.experiments.results import RunResult, read_report, read_result
from plumbline.experiments.run_spec import RunSpec, read_spec
from plumbline.experiments.verification.claims import read_claim

TUNING = "tuning.json"
NONPRIVATE = "nonprivate"


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
        left_out: What the recipe has and the page has not, in words.
        command: That makes the run again, where no recipe does.
    """

    recipe: Recipe
    table: Comparison
    runs: Mapping[str, tuple[Run, ...]]
    tuning: Mapping[str, Any] | None
    single: bool
    left_out: tuple[str, ...] = ()
    command: str | None = None

    @property
    def titles(self) -> list[str]:
        """The methods' titles: the recipe's order, rows of one method beside each other."""
        order = list(dict.fromkeys(self.base(title) for title in self.runs))
        return sorted(self.runs, key=lambda title: order.index(self.base(title)))

    @property
    def private(self) -> list[str]:
        """The titles of the methods that have a guarantee."""
        return [title for title in self.titles if math.isfinite(self.row(title).epsilon)]

    @property
    def groups(self) -> list[str]:
        """The groups' names; empty where there is only one."""
        groups = list(self.table.rows[0].seeds.by_group)
        return groups if len(groups) > 1 else []

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(self.recipe.seeds)

    def part(self, title: str) -> MethodPart:
        """A row of the recipe."""
        return next(method for method in self.recipe.methods if method.title == title)

    def spec(self, title: str) -> RunSpec:
        """The row's first run, which knows what it has instead of the recipe's."""
        return RunSpec(self.recipe, self.part(title), self.recipe.seeds[0])

    def row(self, title: str) -> MethodRow:
        """A line of the table."""
        return self.table.row(title)

    def base(self, title: str) -> str:
        """What rows of one method that differ in where their settings come from share."""
        part = self.part(title)
        return part.label or part.name

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


def read(folder: str | os.PathLike[str]) -> Study:
    """Reads a comparison's folder, or a run's.

    Raises:
        ValueError: If there is no finished run in it.
    """
    root = Path(folder)
    path = root / RECIPE
    if (root / SETTINGS).is_file():
        return _own(root)
    if not path.is_file():
        raise ValueError(
            f"{root} has neither {RECIPE} nor {SETTINGS}; give the folder of a comparison or of a "
            "run, as `plumbline compare` and `plumbline train` leave it behind."
        )
    fields = json.loads(path.read_text(encoding="utf-8"))
    if "methods" in fields:
        return _comparison(Recipe.of(fields, str(path)), root)
    return _single(root)


def _comparison(recipe: Recipe, root: Path) -> Study:
    finished: dict[str, dict[int, Path]] = {}
    for method in recipe.methods:
        folders = {seed: root / RunSpec(recipe, method, seed).folder for seed in recipe.seeds}
        done = {seed: folder for seed, folder in folders.items() if (folder / RESULT).is_file()}
        if done:
            finished[method.title] = done
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
            "seeds": tuple(seeds),
            "baseline": recipe.baseline if recipe.baseline in finished else None,
        }
    )
    runs = {title: tuple(_run(done[seed]) for seed in seeds) for title, done in finished.items()}
    table = table_of(shown, [run.result for own in runs.values() for run in own])
    return Study(shown, table, runs, _json(root / TUNING), False, left_out)


def _single(root: Path) -> Study:
    _require_finished(root)
    recipe, run = read_spec(root).recipe, _run(root)
    table = table_of(recipe, [run.result])
    return Study(recipe, table, {run.result.method: (run,)}, None, True)


def _own(root: Path) -> Study:
    """A run on a table of one's own, with as much of a recipe as it has."""
    _require_finished(root)
    claim = read_claim(root)
    settings, stored = claim.settings, claim.result or {}
    network = stored["model"]
    method = MethodPart(name=settings["method"], settings=settings["method_settings"])
    budget = {name: settings[name] for name in BudgetPart.model_fields if name in settings}
    rate, seed = settings["learning_rate"], settings["seed"]
    # Not validated: no loader has the name of a person's own file.
    recipe = Recipe.model_construct(
        name=root.name,
        data=DataPart.model_construct(name=Path(settings["data"]).name),
        model=ModelPart.model_construct(name=network["name"], options=network["options"]),
        budget=BudgetPart(**budget),
        optimizer=OptimizerPart(name=settings["optimizer"], learning_rate=rate),
        methods=(method,),
        seeds=(0 if seed is None else seed,),
        baseline=None,
    )
    result = RunResult(
        method=method.title,
        seed=recipe.seeds[0],
        epsilon=float(stored["epsilon"]),
        steps=stored["steps"],
        seconds=stored["seconds"],
        report=read_report(stored["report"]),
        statement=stored["statement"],
        folder=root.name,
    )
    runs = {method.title: (_with_files(result, root),)}
    command = stored.get("command", "")
    return Study(recipe, table_of(recipe, [result]), runs, None, True, command=command)


def _require_finished(root: Path) -> None:
    if not (root / RESULT).is_file():
        raise ValueError(f"The run in {root} is not finished; start it again to go on.")


def _run(folder: Path) -> Run:
    result = read_result(folder)
    assert result is not None  # the caller has looked
    return _with_files(result, folder)


def _with_files(result: RunResult, folder: Path) -> Run:
    return Run(
        result=result,
        metrics=tuple(read_rows(folder / METRICS)),
        readings=tuple(read_rows(folder / DIAGNOSTICS)),
        final=_json(folder / FINAL_FILE) or {},
        versions=_json(folder / VERSIONS) or {},
    )


def _left_out(
    recipe: Recipe, finished: Mapping[str, Mapping[int, Path]], seeds: list[int]
) -> tuple[str, ...]:
    said = [
        f"{method.title} has no finished run yet"
        for method in recipe.methods
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
