"""``plumbline tune``: the same search for every method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from plumbline.cli.app import Json, app, console, examples, show, show_json, table
from plumbline.cli.interrupts import ending_with_its_part, stopping
from plumbline.cli.options import Ledger, Metric, Out, Ray, Recipe, Shard, Workers, described
from plumbline.cli.progress import watching
from plumbline.cli.run_summary import settle


@app.command(
    epilog=examples(
        "plumbline tune demo-untuned --trials 20",
        "plumbline compare runs/demo-untuned/tuned.toml   (both, as given and tuned)",
        "plumbline tune --data my.csv --target income --sensitive sex --epsilon 3",
    )
)
@described
def tune(
    description: dict[str, Any],
    recipe: Recipe = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Settings tried for each method.", show_default="the recipe's", min=1),
    ] = None,
    metric: Metric = None,
    ledger: Ledger = None,
    out: Out = Path("runs"),
    workers: Workers = None,
    shard: Shard = None,
    ray: Ray = None,
    json_: Json = False,
) -> None:
    """Searches settings, equally for every method, and writes a recipe with the tuned rows.

    Epsilon does not cover the choice; that of `plumbline compare --private-selection` does.
    """
    from plumbline import instruments
    from plumbline.experiments.engines import workers_for
    from plumbline.experiments.tuning import NOT_COVERED

    if trials is not None:
        description["trials"] = trials
    if metric is not None:
        description["objective"] = metric
    made = instruments.recipe_of(recipe, **description)
    workers_for(shard, workers, ray)  # refuses before a table is asked for its schema
    made = settle(made, out / made.name, description, ledger=ledger, ask=shard is None)
    with ending_with_its_part(), watching() as watch, stopping(watch, out / made.name):
        found = instruments.tune(
            made,
            folder=out,
            ledger=ledger,
            workers=workers,
            shard=shard,
            ray=ray,
            on_progress=watch,
        )
    path = out / made.name / "tuned.toml"
    if json_:
        rows = [
            {**vars(found.sensitivity[title]), **vars(found.best(title))} for title in found.trials
        ]
        show_json({"recipe": str(path), "rows": rows, "not_covered": NOT_COVERED})
        return
    part = found.recipe.tune
    shown = table("method", f"best {part.objective}", "median", "settings found")
    shown.columns[-1].justify = "left"
    for title, spread in found.sensitivity.items():
        shown.add_row(title, f"{spread.best:.4g}", f"{spread.median:.4g}", str(found.best(title)))
    console.print(shown)
    show(f"{part.objective} of the records held out, over {part.trials} trials for each method.")
    show(f"Not covered by epsilon: {NOT_COVERED}.")
    show(f"The recipe with the tuned rows: {path}. To run it: plumbline compare {path}")
