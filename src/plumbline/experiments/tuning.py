"""Equal tuning: every method gets the same number of trials, the same validation part and seeds.

A comparison that tunes its methods unequally measures the tuning. Each row of a recipe is searched
over its own declared space: the learning rate, the clipping bound where it has one, and the
method's own knobs (``plumbline.spaces``). The first trial is the settings that the recipe
gives, so that tuning never does worse on the validation part than not tuning. The same command
started again repeats nothing: trials are runs with folders of their own, and the search is seeded.

Epsilon covers each trial, but neither their number nor the choice among them; ``NOT_COVERED`` says
so wherever a tuned result is shown. ``selecting`` covers the choice too.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline import methods
from plumbline.experiments.charging import Named
from plumbline.experiments.files import make_folder, write_json, write_text
from plumbline.experiments.linear_baseline import with_simple_row
from plumbline.experiments.objects import is_object
from plumbline.experiments.pool import OnProgress, Progress, Workers
from plumbline.experiments.recipe import MethodPart, Recipe, RecipeError, TunePart
from plumbline.experiments.recipe_parts import WORST
from plumbline.experiments.run_result import RunResult
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.sharding import PartMade
from plumbline.fairness import GroupReport, Undefined, to_json
from plumbline.fairness.evaluating import BY_NAME
from plumbline.spaces import LogBetween, Space

NOT_COVERED = (
    "the choice of settings by trials on private records: epsilon covers each run, not the search"
)
RATE = "learning_rate"
_AT_ONCE = 4  # trials asked for together: fixed, so that a search does not depend on the cores


@dataclass(frozen=True)
class Trial:
    """Settings that were tried.

    Attributes:
        method: The title of the row.
        learning_rate: What was tried.
        settings: What was tried.
        score: The objective on the validation part, mean over seeds; infinite or minus infinite,
            whichever is worse, where it is undefined.
        folders: The runs it comes from.
    """

    method: str
    learning_rate: float
    settings: dict[str, Any]
    score: float
    folders: tuple[str, ...]

    def __str__(self) -> str:
        """What was tried."""
        values = {"learning rate": self.learning_rate, **self.settings}
        shown = {k: f"{v:.3g}" if isinstance(v, float) else str(v) for k, v in values.items()}
        return ", ".join(f"{name} {value}" for name, value in shown.items())


@dataclass(frozen=True)
class Sensitivity:
    """How much a method's result depends on its knobs.

    Attributes:
        best: The best score.
        median: The score of the median trial: what a guess within the space would get.
        near: The share of trials about as good as the best (a point of accuracy, 0.02 of loss).
        importance: For each knob the part that it has in being among the best trials, adding up
            to 1; empty with too few trials to tell.
    """

    best: float
    median: float
    near: float
    importance: dict[str, float]


@dataclass(frozen=True)
class Tuning:
    """The result of a search.

    Attributes:
        recipe: The recipe with a tuned row after each of its own.
        trials: All that was tried, by row.
        sensitivity: By row.
    """

    recipe: Recipe
    trials: dict[str, tuple[Trial, ...]]
    sensitivity: dict[str, Sensitivity]

    def best(self, title: str) -> Trial:
        """The best trial of a row."""
        return _best(self.trials[title], _minimised(self.recipe.tune))

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Writes tuning.json and the tuned recipe, tuned.toml, whose path is returned."""
        root = Path(folder)
        make_folder(root)
        found = {
            "objective": self.recipe.tune.objective,
            "not_covered": NOT_COVERED,
            "trials": [
                {**vars(one), "folder": one.folders[0]} for of in self.trials.values() for one in of
            ],
            "sensitivity": {title: vars(one) for title, one in self.sensitivity.items()},
        }
        write_json(root / "tuning.json", to_json(found))
        write_text(root / "tuned.toml", self.recipe.toml())
        return root / "tuned.toml"

    def __str__(self) -> str:
        """The table in Markdown: what was found, and how sensitive each method is."""
        lines = [f"| method | best {self.recipe.tune.objective} | median trial | near the best |"]
        lines[0] += " settings found | which knob matters |"
        lines.append("| --- | ---: | ---: | ---: | --- | --- |")
        for title, one in self.sensitivity.items():
            knobs = sorted(one.importance.items(), key=lambda item: -item[1])
            lines.append(
                f"| {title} | {one.best:.4g} | {one.median:.4g} | {one.near:.0%} | "
                f"{self.best(title)} | "
                + ", ".join(f"{name} {share:.0%}" for name, share in knobs)
                + " |"
            )
        return "\n".join(lines)


def tune(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    workers: int | Workers | None = None,
    ledger: Named = None,
    on_progress: OnProgress | None = None,
) -> Tuning:
    """Searches settings for every row of a recipe, as its ``tune`` part says.

    Args:
        recipe: Whose rows.
        folder: Where the trials' runs are kept.
        workers: How many runs at a time, one for each core by default; or processes.
        ledger: Where runs are charged, as of ``run``.
        on_progress: Called with a `Progress` now and then.

    Raises:
        PartMade: If the processes are those of one part, and rows of others are not finished.
    """
    recipe = with_simple_row(recipe)
    rows = [row for row in recipe.methods if row.origin != "tuned"]
    found: dict[str, tuple[Trial, ...]] = {}
    sensitivity: dict[str, Sensitivity] = {}
    tuned: list[MethodPart] = []
    left: PartMade | None = None
    total = len(rows) * recipe.tune.trials * len(recipe.tune.seeds)
    with Workers.of(workers) as pool:
        for place, row in enumerate(rows):
            before = place * recipe.tune.trials * len(recipe.tune.seeds)
            progress = _shifted(on_progress, before, total)
            search = _Search(recipe, row, Path(folder), pool.of_row(place), ledger, progress)
            try:
                found[row.title], sensitivity[row.title] = search.run()
            except PartMade as made:  # another part's row: on to our own
                left = made
                continue
            tuned += [row, search.tuned()]
    if left is not None:
        raise left
    return Tuning(recipe.model_copy(update={"methods": tuple(tuned)}), found, sensitivity)


def space_of(row: MethodPart, tune: TunePart) -> dict[str, Space]:
    """What is searched for a row: the learning rate, the clip if it has one, its own knobs."""
    space: dict[str, Space] = {RATE: LogBetween(*tune.learning_rate)}
    if is_object(row.name):
        return space
    entry = methods.find(row.name)
    if entry.clips:
        space["clip"] = LogBetween(*tune.clip)
    return {**space, **entry.search}


def candidate(
    row: MethodPart, space: Mapping[str, Space], places: Mapping[str, float]
) -> MethodPart:
    """The row with settings at given places of its space, in three digits."""
    values = {name: _rounded(one.at(places[name])) for name, one in space.items()}
    rate = values.pop(RATE)
    return row.model_copy(
        update={"learning_rate": rate, "settings": {**row.settings, **values}, "origin": "tuned"}
    )


def score_of(report: GroupReport, objective: str) -> float:
    """The objective's value; NaN where it is undefined.

    Raises:
        RecipeError: If the data have no such metric.
    """
    metric = objective.removeprefix(WORST)
    if metric not in report.overall:
        named = ", ".join(one for one in report.overall if BY_NAME[one].better is not None)
        raise RecipeError(f"These data have no {metric} to aim at; they have {named}.")
    if not objective.startswith(WORST):
        value = report.overall[metric]
        return math.nan if isinstance(value, Undefined) else float(value)
    judged = [group for group, size in report.sizes.items() if size >= report.minimum_size]
    values = [report.by_group[group][metric] for group in judged]
    numbers = [float(value) for value in values if not isinstance(value, Undefined)]
    if len(numbers) < len(values) or not numbers:
        return math.nan
    return max(numbers) if BY_NAME[metric].better == "lower" else min(numbers)


class _Search:
    """The trials of one row."""

    def __init__(
        self,
        recipe: Recipe,
        row: MethodPart,
        root: Path,
        pool: Workers,
        ledger: Named,
        on_progress: OnProgress | None,
    ) -> None:
        self._recipe = recipe.model_copy(update={"probe": None, "log_every": 10**9})
        self._row, self._root, self._pool, self._on_progress = row, root, pool, on_progress
        self._ledger = ledger
        self._space = space_of(row, recipe.tune)
        self._minimised = _minimised(recipe.tune)
        self._trials: list[Trial] = []

    def run(self) -> tuple[tuple[Trial, ...], Sensitivity]:
        """All trials, and what they say about the knobs."""
        optuna = _optuna()
        study = optuna.create_study(
            direction="minimize" if self._minimised else "maximize",
            sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=6, constant_liar=True),
        )
        knobs = {name: optuna.distributions.FloatDistribution(0, 1) for name in self._space}
        given = [_as_given(self._row, self._recipe)]
        while len(self._trials) < self._recipe.tune.trials:
            left = min(_AT_ONCE, self._recipe.tune.trials - len(self._trials))
            asked = [study.ask(knobs) for _ in range(left - len(given))]
            rows = [candidate(self._row, self._space, one.params) for one in asked]
            tried = self._try([*given, *rows])
            for one, trial in zip(asked, tried[len(given) :], strict=True):
                if math.isfinite(trial.score):
                    study.tell(one, trial.score)
                else:
                    study.tell(one, state=optuna.trial.TrialState.FAIL)
            given = []
        return tuple(self._trials), self._sensitivity(study)

    def tuned(self) -> MethodPart:
        """The row with the best settings."""
        best = _best(self._trials, self._minimised)
        return self._row.model_copy(
            update={
                "origin": "tuned",
                "learning_rate": best.learning_rate,
                "settings": best.settings,
            }
        )

    def _try(self, rows: Sequence[MethodPart]) -> list[Trial]:
        tune = self._recipe.tune
        specs = [
            RunSpec(self._recipe, row, seed, held_out=tune.validation)
            for row in rows
            for seed in tune.seeds
        ]
        done = len(self._trials) * len(tune.seeds)
        progress = _shifted(self._on_progress, done)
        results = self._pool.run(specs, self._root, progress, self._ledger)
        by_row = [
            results[place : place + len(tune.seeds)]
            for place in range(0, len(results), len(tune.seeds))
        ]
        tried = [self._trial(row, runs) for row, runs in zip(rows, by_row, strict=True)]
        self._trials += tried
        return tried

    def _trial(self, row: MethodPart, runs: Sequence[RunResult]) -> Trial:
        scores = [score_of(one.report, self._recipe.tune.objective) for one in runs]
        score = statistics.fmean(scores)
        if math.isnan(score):
            score = math.inf if self._minimised else -math.inf
        return Trial(
            method=self._row.title,
            learning_rate=row.learning_rate
            or RunSpec(self._recipe, row, 0).optimizer.learning_rate,
            settings=row.settings,
            score=score,
            folders=tuple(one.folder for one in runs),
        )

    def _sensitivity(self, study: Any) -> Sensitivity:
        scores = sorted((one.score for one in self._trials), reverse=not self._minimised)
        near = [score for score in scores if abs(score - scores[0]) <= _near(self._recipe.tune)]
        importance: dict[str, float] = {}
        if len(self._trials) >= 8 and len(self._space) > 1:
            optuna = _optuna()
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            importance = dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        return Sensitivity(
            best=scores[0],
            median=statistics.median(scores),
            near=len(near) / len(scores),
            importance=importance,
        )


def _as_given(row: MethodPart, recipe: Recipe) -> MethodPart:
    rate = RunSpec(recipe, row, 0).optimizer.learning_rate
    return row.model_copy(update={"learning_rate": rate, "origin": "tuned"})


def _best(trials: Sequence[Trial], minimised: bool) -> Trial:
    """The best trial; the earliest of equals."""
    pick = min if minimised else max
    return pick(trials, key=lambda one: one.score)


def _minimised(tune: TunePart) -> bool:
    return BY_NAME[tune.objective.removeprefix(WORST)].better == "lower"


def _near(tune: TunePart) -> float:
    """What counts as about as good: a point of a share, 0.02 of anything else."""
    return 0.02 if _minimised(tune) else 0.01


def _shifted(
    on_progress: OnProgress | None, done: int, total: int | None = None
) -> OnProgress | None:
    """Tells the progress of a part as that of the whole."""
    if on_progress is None:
        return None
    return lambda part: on_progress(
        Progress(done + part.done, total or part.total, part.running, "trials")
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "Tuning needs optuna, which is in the extra 'tune': pip install 'plumbline[tune]'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
