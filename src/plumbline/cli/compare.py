"""``plumbline compare``: methods side by side, on one's own data or of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline.cli.app import (
    Json,
    WrongUse,
    app,
    aside,
    console,
    examples,
    show,
    show_json,
    table,
)
from plumbline.cli.interrupts import ending_with_its_part, stopping
from plumbline.cli.options import (
    Ledger,
    Limit,
    Metric,
    Out,
    Ray,
    Recipe,
    Seed,
    Shard,
    Workers,
    described,
)
from plumbline.cli.progress import watching
from plumbline.cli.run_summary import settle
from plumbline.formats import number, points, seconds

if TYPE_CHECKING:
    from rich.table import Table as Shown

    from plumbline.experiments import ComparisonTable
    from plumbline.fairness import Estimate
    from plumbline.report import Study

_ROOMY = 100  # columns in which the standard errors of groups and losses have room
_GROUPS = 3  # the most that get a column each


@app.command(
    epilog=examples(
        "plumbline compare demo",
        "plumbline compare --data my.csv --target income --sensitive sex --epsilon 1,3,8",
        "plumbline compare --data my.csv --target income --methods dpsgd,bam,my.rules:Soft",
        "plumbline compare runs/my/Global-Adapt-*   (on the data of that run)",
        "plumbline compare my.toml --out experiments --workers 4",
        "plumbline compare my.toml --shard 3/16   (a job of an array; then once without --shard)",
        "plumbline compare demo --json --no-page > table.json",
    )
)
@partial(described, without=("method", "set_"))
def compare(
    description: dict[str, Any],
    recipe: Recipe = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Which, separated by commas; of a recipe, which of its rows.",
            show_default="six of them, on --data",
            rich_help_panel="Training",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Settings tried for each method; 0 takes them as they are.",
            show_default="8 on --data",
            min=0,
        ),
    ] = None,
    metric: Metric = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each method.", show_default="3 on --data", min=1)
    ] = None,
    seed: Seed = None,
    private_selection: Annotated[
        bool,
        typer.Option(
            "--private-selection", help="Choose settings so that epsilon covers the choice."
        ),
    ] = False,
    save_recipe: Annotated[
        Path | None,
        typer.Option(help="Write the recipe that says the same, and run nothing.", metavar="FILE"),
    ] = None,
    ledger: Ledger = None,
    limit: Limit = None,
    out: Out = Path("runs"),
    workers: Workers = None,
    shard: Shard = None,
    ray: Ray = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write the HTML page.")] = True,
    json_: Json = False,
) -> None:
    """Runs methods side by side, each tuned alike on --data, and prints the table and a verdict.

    Starting again repeats nothing that is finished.
    """
    from plumbline import instruments
    from plumbline.experiments.engines import workers_for
    from plumbline.experiments.selecting import check_selectable
    from plumbline.fairness.evaluating import BY_NAME

    if methods is not None:
        description["methods"] = [name.strip() for name in methods.split(",")]
    if trials is not None:
        description["trials"] = trials
    if metric is not None:
        description["objective"] = metric
    if seeds is not None or seed is not None:
        first = 0 if seed is None else seed
        description["seeds"] = list(range(first, first + (seeds or 3)))
    if seed is not None:
        description["noise"] = "seeded"
    made = instruments.comparison_of(recipe, **description)
    if save_recipe is not None:
        from plumbline.experiments.files import write_text

        write_text(save_recipe, made.toml())
        show(f"The recipe is in {save_recipe}; plumbline compare {save_recipe} runs it.")
        return
    if private_selection:
        check_selectable(made)
        if ray is not None:
            raise WrongUse("A private selection is made here: leave out --ray.")
    workers_for(shard, workers, ray)  # refuses before a table is asked for its schema
    made = settle(made, out / made.name, description, ledger=ledger, limit=limit, ask=shard is None)
    secret = "selecting among candidates (their number is a secret)"
    with (
        ending_with_its_part(),
        watching() as watch,
        stopping(watch, out / made.name, secret=private_selection),
        aside.status(secret) if private_selection else nullcontext(),
    ):
        found = instruments.compare(
            made,
            folder=out,
            ledger=ledger,
            workers=workers,
            shard=shard,
            ray=ray,
            private_selection=private_selection,
            on_progress=watch,
        )
    written = str(found.page()) if page else None
    compared = found.table
    if json_:
        where = {"folder": str(found.folder), "page": written}
        spent = found.study.totals.to_json()
        show_json({**json_table(compared), "verdict": found.verdict, "budget": spent, **where})
        return
    console.print(comparison(compared))
    seeds_ = len(compared.recipe.seeds)
    if seeds_ > 1:
        show(f"± is the standard error over {seeds_} seeds.")
    if compared.tests is not None:
        title = BY_NAME[compared.main].title
        show(f"p: {title} against {compared.recipe.baseline}. {compared.tests.note}")
    if len(found.study.epsilons) > 1:
        console.print()
        console.print(at_each_epsilon(found.study))
        show(
            "Of each epsilon, the best private method; and how often whoever sees its model can be "
            "right about whether one record is in the data, where half is guessing."
        )
    console.print()
    for paragraph in found.verdict:
        show(paragraph)
    console.print()
    for what, path in (("runs", found.folder), ("page", written)):
        if path is not None:
            console.print(f"{what}: {path}", highlight=False, soft_wrap=True)


def comparison(made: ComparisonTable) -> Shown:
    """The table, narrow enough for the terminal: what there is no room for is in the page."""
    from plumbline.fairness.evaluating import BY_NAME, short_title, written
    from plumbline.fairness.remarks import beside_main
    from plumbline.mechanism.rounding import rounded_up

    main, overall = made.main, made.rows[0].seeds.overall
    groups = list(made.rows[0].seeds.by_group)
    several = len(groups) > 1
    each = groups if several and len(groups) <= _GROUPS else []
    roomy = console.width >= _ROOMY
    beside = _fitting(beside_main(overall), each or (["lowest", "highest"] if several else []))
    heads = (short_title(one) for one in beside)
    titles = ["method", "epsilon", BY_NAME[main].title, *heads]
    titles += each if each or not several else ["lowest", "highest"]
    tested = made.tests is not None
    shown = table(*titles, "loss", *(["p"] if tested else []), "time")
    for place, column in enumerate(shown.columns):
        column.no_wrap = place > 0  # a long title goes on in the next line, a number never does
    others = {row.title for row in made.recipe.rows if row.epsilon is not None}
    for row in (one for one in made.rows if one.title not in others):
        cells = [rounded_up(row.epsilon), _shown(points, row.seeds.overall[main])]
        cells += [written(name, row.seeds.overall[name].mean) for name in beside]
        by_group = {group: row.seeds.by_group[group][main] for group in groups}
        cells += [_shown(points, by_group[group], error=roomy) for group in each]
        if several and not each:
            cells += _ends(by_group)
        cells += [_shown(number, row.seeds.overall["loss"], error=roomy)]
        if made.tests is not None:
            test = made.tests.tests.get(row.title)
            p = None if test is None else test.adjusted
            cells.append(f"{p:.3f}" if isinstance(p, float) else "")
        shown.add_row(row.title, *cells, seconds(row.seconds))
    return shown


def at_each_epsilon(study: Study) -> Shown:
    """What each epsilon reaches, and what it means."""
    from plumbline.fairness.evaluating import short_title, written
    from plumbline.mechanism.statement import how_often_right
    from plumbline.report.learning import best_at_epsilons, in_order

    metrics = in_order(study)[:2]
    shown = table("epsilon", *map(short_title, metrics), "best method", "right about one record")
    for epsilon, (title, _) in best_at_epsilons(study).items():
        overall = study.row(title).seeds.overall
        cells = [written(one, overall[one].mean, overall[one].standard_error) for one in metrics]
        often = how_often_right(epsilon, study.recipe.budget.delta)
        shown.add_row(f"{epsilon:g}", *cells, study.part(title).base, often)
    return shown


def _fitting(names: Sequence[str], groups: Sequence[str]) -> list[str]:
    """The metrics beside the main one that there is room for, the AUC or an error first."""
    from plumbline.fairness.evaluating import IN_ORDER, short_title
    from plumbline.fairness.metrics import LOSS

    # Of the method's title, epsilon, accuracy, loss, p and time; and of the groups.
    room = console.width - (78 if console.width >= _ROOMY else 58) - 13 * len(groups)
    kept = []
    for place, name in enumerate(sorted(set(names) - {LOSS}, key=IN_ORDER.index)):
        room -= max(6, len(short_title(name))) + 2
        if room >= 0 or place == 0:
            kept.append(name)
    return kept


def json_table(made: ComparisonTable) -> dict[str, Any]:
    """The table for machines."""
    from plumbline.fairness import to_json

    rows = [
        {
            "method": row.title,
            "epsilon": row.epsilon,
            "overall": to_json(row.seeds.overall),
            "by_group": to_json(row.seeds.by_group),
            "cost": to_json(row.cost),
            "seconds": row.seconds,
            "folders": list(row.folders),
        }
        for row in made.rows
    ]
    return {"recipe": made.recipe.name, "rows": rows, "tests": to_json(made.tests)}


def _shown(text: Any, estimate: Estimate, *, error: bool = True) -> str:
    """A number, with its standard error where it has one and there is room."""
    shown: str = text(estimate.mean, estimate.standard_error if error else None)
    return shown


def _ends(by_group: dict[str, Estimate]) -> Sequence[str]:
    """The groups that fare worst and best."""
    known = {group: e.mean for group, e in by_group.items() if isinstance(e.mean, float)}
    if not known:
        return "-", "-"
    low, high = (pick(known, key=lambda group: known[group]) for pick in (min, max))
    return [f"{100 * known[group]:.1f} ({group})" for group in (low, high)]
