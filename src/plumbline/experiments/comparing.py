"""``compare``: methods x seeds at one budget, in parallel, and a table that says how sure it is.

Interrupting and starting again repeats nothing that is finished: every run has a folder of its own.
Every number of the table names the folders that it comes from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plumbline.experiments.charging import Named
from plumbline.experiments.files import (
    RECIPE,
    RESULT,
    FileError,
    make_folder,
    read_json,
    write_json,
)
from plumbline.experiments.linear_baseline import with_simple_row
from plumbline.experiments.pool import OnProgress, Workers
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.run_result import RunResult
from plumbline.experiments.run_spec import RunSpec
from plumbline.fairness import (
    Cost,
    Estimate,
    SeedReport,
    SignificanceTests,
    Undefined,
    across_seeds,
    compare_to,
    cost_of_reports,
    main_metric,
)
from plumbline.fairness.evaluating import BY_NAME, written
from plumbline.fairness.metrics import LOSS
from plumbline.fairness.remarks import beside_main
from plumbline.formats import cell, markdown, number, points
from plumbline.mechanism.rounding import rounded_up
from plumbline.training.run_identity import Facts, differences, facts_of

NONPRIVATE = "nonprivate"

# What all rows of a comparison have in common: a recipe in which one of these differs is another.
_SHARED = (
    "data", "model", "loss", "budget", "optimizer", "averaging", "isolation", "max_physical_batch",
    "probe", "log_every", "noise", "threshold", "class_weights",
)  # fmt: skip


@dataclass(frozen=True)
class MethodRow:
    """A method's line of the comparison.

    Attributes:
        title: The method.
        seeds: Its metrics over seeds, overall and by group.
        cost: What privacy costs each group, against the non-private runs; None without them.
        epsilon: The largest epsilon of its runs.
        seconds: The mean time of a run.
        folders: Where its runs are.
    """

    title: str
    seeds: SeedReport
    cost: Cost | None
    epsilon: float
    seconds: float
    folders: tuple[str, ...]


@dataclass(frozen=True)
class ComparisonTable:
    """The result of a comparison.

    Attributes:
        recipe: What was compared.
        rows: A line for each method, in the recipe's order.
        tests: The main metric of each method against the baseline's, over seeds; None without a
            baseline or with one seed.
    """

    recipe: Recipe
    rows: tuple[MethodRow, ...]
    tests: SignificanceTests | None

    @property
    def main(self) -> str:
        """The metric that methods are first compared by, a share: accuracy, or R² of numbers."""
        return main_metric(self.rows[0].seeds.overall)

    def row(self, title: str) -> MethodRow:
        """A method's line."""
        return next(row for row in self.rows if row.title == title)

    def __str__(self) -> str:
        """The table in Markdown: mean +- standard error over seeds."""
        groups = list(self.rows[0].seeds.by_group)
        overall, main = self.rows[0].seeds.overall, self.main
        more = [name for name in beside_main(overall) if name != LOSS]
        title = BY_NAME[main].title
        head = ["method", "epsilon", title, *(BY_NAME[name].title for name in more), "loss"]
        head += [f"{what} {cell(group)}" for what in (title, "loss", "pi") for group in groups]
        head += ["p", "s"]
        lines = []
        for row in self.rows:
            cells = [cell(row.title), rounded_up(row.epsilon)]
            cells.append(_shown(points, row.seeds.overall[main]))
            for name in more:
                one = row.seeds.overall[name]
                cells.append(written(name, one.mean, one.standard_error))
            cells.append(_shown(number, row.seeds.overall[LOSS]))
            cells += [_shown(points, row.seeds.by_group[group][main]) for group in groups]
            cells += [_shown(number, row.seeds.by_group[group][LOSS]) for group in groups]
            for group in groups:
                cost = None if row.cost is None else row.cost.privacy_cost.by_group.get(group)
                cells.append("" if cost is None else _shown(points, cost))
            cells += [self._p(row.title), f"{row.seconds:.0f}"]
            lines.append(cells)
        return markdown(head, lines)

    def _p(self, title: str) -> str:
        if self.tests is None or title not in self.tests.tests:
            return ""
        value = self.tests.tests[title].adjusted
        return "" if isinstance(value, Undefined) else f"{value:.3f}"


def compare(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    workers: int | Workers | None = None,
    ledger: Named = None,
    on_progress: OnProgress | None = None,
) -> ComparisonTable:
    """Makes every run of a recipe that is not finished yet, and the table.

    On images and text a linear model on fixed public features is added to the rows, if the recipe
    has none.

    Args:
        recipe: What to compare.
        folder: Where runs are kept.
        workers: How many runs at a time; by default one for each core. With 1 they run here. Or
            processes that are there already.
        ledger: Where runs are charged, as of ``run``.
        on_progress: Called with a `Progress` now and then.

    Raises:
        RecipeError: If the folder holds runs of another recipe: other rows and seeds are welcome,
            another budget, network or data set is not.
    """
    recipe = with_simple_row(recipe)
    specs = [RunSpec(recipe, row, seed) for seed in recipe.seeds for row in recipe.rows]
    root = Path(folder)
    make_folder(root)
    kept = _kept(root)
    if kept is None:
        _write(recipe, root)
    else:
        _check_same(recipe, kept, root)
    with Workers.of(workers) as pool:
        results = pool.run(specs, root, on_progress, ledger)
    _write(recipe, root)  # only now in the place of one whose runs are finished
    return table_of(recipe, results)


def _write(recipe: Recipe, root: Path) -> None:
    write_json(root / RECIPE, recipe.model_dump(mode="json"))


def _kept(root: Path) -> Recipe | None:
    """The recipe of a folder in which runs of it are finished; None if there is none."""
    try:
        kept = Recipe.of(read_json(root / RECIPE))
    except (FileError, RecipeError):
        return None
    specs = (RunSpec(kept, row, seed) for seed in kept.seeds for row in kept.rows)
    return kept if any((root / spec.folder / RESULT).is_file() for spec in specs) else None


def _check_same(recipe: Recipe, kept: Recipe, root: Path) -> None:
    """Refuses a recipe that has only its name in common with the one in the folder."""
    changes = differences(_facts(recipe), _facts(kept), "there", absent="not given")
    if changes:
        raise RecipeError(
            f"{root} holds finished runs of another recipe called '{kept.name}': "
            f"{', '.join(changes)}. Give this one another folder with --out, or another name; or "
            "delete that folder if its runs are no longer wanted."
        )


def _facts(recipe: Recipe) -> Facts:
    fields = recipe.model_dump(mode="json", include=set(_SHARED))
    return {key: fact for name in _SHARED for key, fact in facts_of(fields[name], name).items()}


def table_of(recipe: Recipe, results: Sequence[RunResult]) -> ComparisonTable:
    """The table of finished runs, every method's in the order of the seeds."""
    by_title: dict[str, list[RunResult]] = {row.title: [] for row in recipe.rows}
    for result in results:
        by_title[result.method].append(result)
    # Tuned rows cost what they lose against tuned non-private runs, where there are such.
    free = {method.origin: method.title for method in recipe.methods if method.name == NONPRIVATE}
    rows = []
    for row in recipe.rows:
        beside = free.get(row.origin, next(iter(free.values()), None))
        reference = None if beside is None else [result.report for result in by_title[beside]]
        rows.append(_row(row.title, by_title[row.title], reference))
    return ComparisonTable(recipe, tuple(rows), _tests(recipe, rows))


def _row(title: str, runs: Sequence[RunResult], reference: Sequence[object] | None) -> MethodRow:
    reports = [one.report for one in runs]
    cost = None
    if reference is not None and reports != reference:
        cost = cost_of_reports(reports, reference)  # type: ignore[arg-type]
    return MethodRow(
        title=title,
        seeds=across_seeds(reports),
        cost=cost,
        epsilon=max(one.epsilon for one in runs),
        seconds=sum(one.seconds for one in runs) / len(runs),
        folders=tuple(one.folder for one in runs),
    )


def _tests(recipe: Recipe, rows: Sequence[MethodRow]) -> SignificanceTests | None:
    if recipe.baseline is None or len(recipe.seeds) < 2:
        return None
    tested = [method.title for method in recipe.methods]
    main = main_metric(rows[0].seeds.overall)
    shares = {row.title: row.seeds.overall[main].per_run for row in rows if row.title in tested}
    others = {title: runs for title, runs in shares.items() if title != recipe.baseline}
    return compare_to(shares[recipe.baseline], others, better="higher") if others else None


def _shown(text: Callable[[object, object], str], estimate: Estimate) -> str:
    return text(estimate.mean, estimate.standard_error)
