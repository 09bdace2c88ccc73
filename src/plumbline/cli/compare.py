"""``plumbline compare``: methods and seeds of a recipe, the table, the verdict, the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plumbline.cli.app import (
    Json,
    app,
    console,
    examples,
    same_command,
    show,
    show_json,
    table,
)
from plumbline.cli.interrupts import stopping
from plumbline.cli.names import recipe_at
from plumbline.cli.progress import watching

if TYPE_CHECKING:
    from rich.table import Table as Shown

    from plumbline.experiments import Comparison
    from plumbline.fairness import Estimate

_ROOMY = 100  # columns in which the standard errors of groups and losses have room
_GROUPS = 3  # the most that get a column each

Workers = Annotated[
    int | None,
    typer.Option(help="Runs at a time.", show_default="one for each core", min=1),
]
Out = Annotated[Path, typer.Option(help="Where runs are kept, in a folder of the recipe's name.")]


@app.command(
    epilog=examples(
        "plumbline compare demo",
        "plumbline compare my.toml --out experiments --workers 4",
        "plumbline compare demo --json --no-page > table.json",
    )
)
def compare(
    recipe: Annotated[
        str, typer.Argument(help="The name of a recipe that is shipped, or the path of one.")
    ],
    out: Out = Path("runs"),
    workers: Workers = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write the HTML page.")] = True,
    json_: Json = False,
) -> None:
    """Runs a recipe's methods and seeds, and prints the table. Starting again repeats nothing."""
    read = recipe_at(recipe)
    from plumbline.experiments import compare as run_all

    folder = out / read.name
    with watching("runs") as watch, stopping(lambda: stopped(watch.done, watch.total, folder)):
        made = run_all(read, folder, workers=workers, on_progress=watch)
    from plumbline.report.reading import read as read_study
    from plumbline.report.verdict import words

    said = words(read_study(folder))
    written = None
    if page:
        from plumbline.report import write

        written = str(write(folder))
    if json_:
        show_json({**plain_table(made), "verdict": said, "folder": str(folder), "page": written})
        return
    console.print(comparison(made))
    seeds = len(made.recipe.seeds)
    if seeds > 1:
        show(f"± is the standard error over {seeds} seeds.")
    if made.tests is not None:
        show(f"p: accuracy against {made.recipe.baseline}. {made.tests.note}")
    console.print()
    for paragraph in said:
        show(paragraph)
    console.print()
    console.print(f"runs: {folder}", highlight=False, soft_wrap=True, markup=False)
    if written is not None:
        console.print(f"page: {written}", highlight=False, soft_wrap=True, markup=False)


def stopped(done: int, total: int, folder: Path) -> str:
    """What is kept of a comparison, and how to go on."""
    finished = f"{done} of {total} runs are finished" if total else "no run was started"
    return (
        f"stopped: {finished} and kept in {folder}; the others go on from their last checkpoint. "
        f"To go on, give the same command again: {same_command()}"
    )


def comparison(made: Comparison) -> Shown:
    """The table, narrow enough for the terminal."""
    from plumbline.mechanism.rounding import rounded_up

    groups = list(made.rows[0].seeds.by_group)
    several = len(groups) > 1
    each = groups if several and len(groups) <= _GROUPS else []
    roomy = console.width >= _ROOMY
    titles = ["method", "epsilon", "accuracy", *each]
    titles += [] if each or not several else ["lowest", "highest"]
    tested = made.tests is not None
    shown = table(*titles, "loss", *(["p"] if tested else []), "time")
    for place, column in enumerate(shown.columns):
        column.no_wrap = place > 0  # a long title goes on in the next line, a number never does
    for row in made.rows:
        cells = [rounded_up(row.epsilon), points(row.seeds.overall["accuracy"])]
        by_group = {group: row.seeds.by_group[group]["accuracy"] for group in groups}
        cells += [points(by_group[group], error=roomy) for group in each]
        if several and not each:
            cells += _ends(by_group)
        cells += [loss(row.seeds.overall["loss"], error=roomy)]
        if made.tests is not None:
            test = made.tests.tests.get(row.title)
            p = None if test is None else test.adjusted
            cells.append(f"{p:.3f}" if isinstance(p, float) else "")
        shown.add_row(row.title, *cells, seconds(row.seconds))
    return shown


def plain_table(made: Comparison) -> dict[str, Any]:
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


def points(estimate: Estimate, *, error: bool = True) -> str:
    """A share in points, with its standard error where it has one."""
    if not isinstance(estimate.mean, float):
        return "-"
    spread = estimate.standard_error
    beside = f" ± {100 * spread:.1f}" if error and isinstance(spread, float) else ""
    return f"{100 * estimate.mean:.1f}{beside}"


def loss(estimate: Estimate, *, error: bool = True) -> str:
    """A loss, with its standard error where it has one."""
    if not isinstance(estimate.mean, float):
        return "-"
    spread = estimate.standard_error
    beside = f" ± {spread:.3f}" if error and isinstance(spread, float) else ""
    return f"{estimate.mean:.3f}{beside}"


def seconds(value: float) -> str:
    """A duration, short."""
    if value < 100:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def _ends(by_group: dict[str, Estimate]) -> Sequence[str]:
    """The groups that fare worst and best."""
    known = {group: e.mean for group, e in by_group.items() if isinstance(e.mean, float)}
    if not known:
        return "-", "-"
    low, high = (pick(known, key=lambda group: known[group]) for pick in (min, max))
    return [f"{100 * known[group]:.1f} ({group})" for group in (low, high)]
