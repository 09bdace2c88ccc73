"""``compare`` and ``tune``: methods on anybody's data at one or several epsilons, tuned alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from plumbline import report
from plumbline.experiments import comparing, tuning
from plumbline.experiments.charging import Named, apply_limit
from plumbline.experiments.comparing import ComparisonTable
from plumbline.experiments.engines import workers_for
from plumbline.experiments.pool import OnProgress
from plumbline.experiments.recipe import MethodPart, Recipe, RecipeError
from plumbline.experiments.selecting import check_selectable, select
from plumbline.experiments.settling import settled
from plumbline.experiments.tuning import Tuning
from plumbline.formats import finite
from plumbline.instruments.describing import Description, comparison_of, recipe_of
from plumbline.instruments.loading import Trained, load_run


@dataclass(frozen=True, eq=False)
class Comparison:
    """Finished runs of several methods, side by side.

    Attributes:
        folder: Where the runs are.
        table: A row for each method, with its metrics over seeds.
    """

    folder: Path
    table: ComparisonTable

    @cached_property
    def study(self) -> report.Study:
        """Everything that the runs recorded."""
        return report.read(self.folder)

    @property
    def verdict(self) -> list[str]:
        """What privacy cost, whom, and why: sentences, the most important first."""
        return report.words(self.study)

    @property
    def runs(self) -> dict[str, list[Trained]]:
        """The runs of each method, with their models."""
        return {
            row.title: [load_run(self.folder / name) for name in row.folders]
            for row in self.table.rows
        }

    def to_pandas(self) -> Any:
        """A data frame with a line for each method: means and standard errors over seeds."""
        import pandas as pd

        lines = []
        for row in self.table.rows:
            line: dict[str, Any] = {"method": row.title, "epsilon": row.epsilon}
            groups = {"": row.seeds.overall}
            groups |= {f" {group}": metrics for group, metrics in row.seeds.by_group.items()}
            for group, metrics in groups.items():
                for name, estimate in metrics.items():
                    line[f"{name}{group}"] = finite(estimate.mean)
                    line[f"{name}{group} (s.e.)"] = finite(estimate.standard_error)
            lines.append({**line, "seconds": row.seconds, "runs": len(row.folders)})
        return pd.DataFrame(lines).set_index("method")

    def to_markdown(self) -> str:
        """The table in Markdown."""
        return str(self.table)

    def to_latex(self) -> str:
        """The table in LaTeX, with booktabs' rules."""
        head, _, *rows = [line.strip("| ").split(" | ") for line in str(self.table).splitlines()]
        lines = [" & ".join(map(_escaped, cells)) + r" \\" for cells in (head, *rows)]
        body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
        columns = "l" + "r" * (len(head) - 1)
        return f"\\begin{{tabular}}{{{columns}}}\n{body}\n\\end{{tabular}}\n"

    def page(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Writes the page, ``report.html`` in the folder by default."""
        return report.write(self.folder, path)

    @property
    def figures(self) -> list[str]:
        """The names of the page's figures."""
        return report.figure_names(self.study)

    def figure(self, name: str, path: str | os.PathLike[str]) -> Path:
        """Writes a figure of the page as html, svg or png; images need plotly's exporter."""
        return report.save(report.figure(self.study, name), path)

    def __str__(self) -> str:
        return "\n\n".join([self.to_markdown(), *self.verdict])


def compare(
    recipe: Recipe | str | os.PathLike[str] | None = None,
    *,
    folder: str | os.PathLike[str] = "runs",
    ledger: str | os.PathLike[str] | None = None,
    limit: float | None = None,
    workers: int | None = None,
    shard: str | None = None,
    ray: str | None = None,
    private_selection: bool = False,
    on_progress: OnProgress | None = None,
    **description: Unpack[Description],
) -> Comparison:
    """Compares methods: on one's own data each is tuned with the same trials first.

    Interrupting and starting again repeats nothing that is finished.

    Args:
        recipe: A recipe, its path or its name; the folder of a run, on whose data the comparison is
            then made; or leave it out and describe the runs. The rows of a recipe are run as they
            are, unless it or ``trials`` asks for tuning.
        folder: Runs are kept in a folder of the recipe's name below this one.
        ledger: Where runs are charged, as of ``train``.
        limit: The epsilon that all released models may cost together, as of ``train``; the runs of
            a comparison are not refused.
        workers: How many runs at a time; by default one for each core. With 1 they run here.
        shard: A part of the runs, such as "3/16", for a job array; without it the parts are merged.
        ray: The address of a Ray cluster that makes the runs: "HOST:PORT", "auto" or "local". Its
            machines share the folder; see docs/distributed.md.
        private_selection: Chooses every private method's settings so that epsilon covers the
            choice: one model for each, the winner of a random number of random candidates.
        on_progress: Called with a `Progress` now and then.
        description: The parts of the runs.

    Raises:
        PartMade: With ``shard``, when that part is made.
        ClusterError: If the cluster does not answer, or cannot make the runs.
    """
    made = comparison_of(recipe, **description)
    root = Path(folder) / made.name
    if private_selection:
        check_selectable(made)
        if (shard or ray) is not None:
            raise RecipeError("A private selection cannot be split: leave out --shard and --ray.")
    with workers_for(shard, workers, ray) as pool:  # a cluster answers, or nothing is charged
        apply_limit(made, ledger, limit)
        made = settled(made, root, ledger=ledger, ask=shard is None).recipe
        if private_selection:
            made = _selected(made, root, ledger)
        elif made.tune.before_comparing:
            found = tuning.tune(made, root, workers=pool, ledger=ledger, on_progress=on_progress)
            found.write(root)
            made = _final(found.recipe)
        table = comparing.compare(made, root, workers=pool, ledger=ledger, on_progress=on_progress)
    return Comparison(root, table)


def tune(
    recipe: Recipe | str | os.PathLike[str] | None = None,
    *,
    folder: str | os.PathLike[str] = "runs",
    ledger: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    shard: str | None = None,
    ray: str | None = None,
    on_progress: OnProgress | None = None,
    **description: Unpack[Description],
) -> Tuning:
    """Searches settings, with the same trials for every method; arguments as of ``compare``."""
    made = recipe_of(recipe, **description)
    root = Path(folder) / made.name
    with workers_for(shard, workers, ray) as pool:
        made = settled(made, root, ledger=ledger, ask=shard is None).recipe
        found = tuning.tune(made, root, workers=pool, ledger=ledger, on_progress=on_progress)
    found.write(root)
    return found


def _final(recipe: Recipe) -> Recipe:
    """The tuned rows, and DP-SGD as it was before: what tuning alone is worth."""
    as_given = [row for row in recipe.methods if row.origin != "tuned"]
    reference = next((row for row in as_given if row.name == "dpsgd" and row.model is None), None)
    rows = [row for row in recipe.methods if row.origin == "tuned" or row is reference]
    return _with_rows(recipe, rows)


def _with_rows(recipe: Recipe, rows: Sequence[MethodPart]) -> Recipe:
    """The recipe with other rows, tested against DP-SGD where it is among them."""
    names = [row for row in rows if row.name == "dpsgd" and row.model is None]
    tune = recipe.tune.model_copy(update={"before_comparing": False})
    baseline = names[-1].title if names else None
    return recipe.model_copy(update={"methods": tuple(rows), "baseline": baseline, "tune": tune})


def _selected(recipe: Recipe, root: Path, ledger: Named) -> Recipe:
    """The recipe with the winner of a private selection in place of every private row.

    A selection gives one model, and so there is one seed.
    """
    if recipe.budget.epsilon is None:
        raise ValueError(
            "A private selection needs an epsilon; the recipe gives a noise multiplier."
        )
    one = recipe.model_copy(update={"seeds": recipe.seeds[:1], "epsilons": (), "probe": None})
    rows = [row for row in one.methods if not row.private]
    for row in recipe.rows:
        if row.private:
            own = one.model_copy(update={"methods": (row,), "baseline": None})
            epsilon = row.epsilon or recipe.budget.epsilon
            seed = None if recipe.noise == "secure" else recipe.seeds[0]
            mean = float(recipe.tune.trials)
            found = select(
                own, row.title, root, epsilon=epsilon, mean=mean, seed=seed, ledger=ledger
            )
            rows.append(found.row)
    return _with_rows(one, rows)


def _escaped(text: str) -> str:
    for sign, words in (("&", r"\&"), ("%", r"\%"), ("_", r"\_"), ("±", r"$\pm$")):
        text = text.replace(sign, words)
    return text
