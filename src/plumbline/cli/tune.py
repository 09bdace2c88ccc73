"""``plumbline tune``: the same search for every method of a recipe; or one that epsilon covers."""

from __future__ import annotations

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
    same_command,
    show,
    show_json,
    show_statement,
    table,
)
from plumbline.cli.interrupts import stopping
from plumbline.cli.options import Out, Recipe, Workers, described
from plumbline.cli.progress import watching
from plumbline.cli.run_summary import by_group
from plumbline.cli.train import require_one

if TYPE_CHECKING:
    from plumbline.experiments.tuning import Tuning


@app.command(
    epilog=examples(
        "plumbline tune demo-untuned --trials 20",
        "plumbline compare runs/demo-untuned/tuned.toml   (both, as given and tuned)",
        "plumbline tune --data my.csv --target income --sensitive sex --epsilon 3",
        "plumbline tune demo-untuned --private-selection --epsilon 3 --method DPSGD",
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
    private_selection: Annotated[
        bool,
        typer.Option(
            "--private-selection", help="Choose one method's settings so that epsilon covers it."
        ),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Makes a private selection repeatable.", show_default="none")
    ] = None,
    out: Out = Path("runs"),
    workers: Workers = None,
    json_: Json = False,
) -> None:
    """Searches settings, equally for every method, and writes a recipe with the tuned rows."""
    require_one(recipe, description)
    if trials is not None:
        description["trials"] = trials
    if private_selection:
        _select(recipe, description, seed, out, json_)
        return
    if seed is not None:
        raise WrongUse("--seed belongs to --private-selection; a search has seeds of its own.")
    from plumbline import instruments

    made = instruments.recipe_of(recipe, **description)
    folder = out / made.name
    with watching("trials") as watch, stopping(lambda: _stopped(watch.done, watch.total, folder)):
        found = instruments.tune(made, folder=out, workers=workers, on_progress=watch)
    _show_search(found, folder / "tuned.toml", json_)


def _show_search(found: Tuning, path: Path, json_: bool) -> None:
    from plumbline.experiments.tuning import NOT_COVERED

    if json_:
        show_json(
            {
                "recipe": str(path),
                "rows": [_row_json(found, title) for title in found.trials],
                "not_covered": NOT_COVERED,
            }
        )
        return
    part = found.recipe.tune
    shown = table("method", f"best {part.objective}", "median", "settings found")
    shown.columns[-1].justify = "left"
    for title in found.trials:
        row = _row_json(found, title)
        settings = {"learning rate": row["learning_rate"], **row["settings"]}
        words = ", ".join(f"{name} {_short(value)}" for name, value in settings.items())
        shown.add_row(title, f"{row['best']:.4g}", f"{row['median']:.4g}", words)
    console.print(shown)
    show(f"{part.objective} of the records held out, over {part.trials} trials for each method.")
    show(f"Not covered by epsilon: {NOT_COVERED}.")
    show(f"The recipe with the tuned rows: {path}. To run it: plumbline compare {path}")


def _select(
    recipe: str | None, description: dict[str, Any], seed: int | None, out: Path, json_: bool
) -> None:
    from plumbline.experiments.selecting import select
    from plumbline.fairness import NOT_COVERED
    from plumbline.instruments.describing import METHOD, recipe_of
    from plumbline.instruments.diagnosing import row_named

    if not isinstance(description.get("epsilon"), float):
        raise WrongUse("--private-selection needs --epsilon: what the whole choice may cost.")
    if recipe is None:
        description.setdefault("method", METHOD)
    epsilon, method = description.pop("epsilon"), description.pop("method", None)
    if recipe is None:
        description["method"] = method
    read = recipe_of(recipe, **description)
    title = row_named(read, method if recipe is not None else None).title
    message = (
        "stopped. A private selection keeps nothing until it is finished: what the candidates did "
        f"is deleted, and was not disclosed. To start it again: {same_command()}"
    )
    with (
        aside.status(f"selecting among candidates of {title} (their number is a secret)"),
        stopping(lambda: message),
    ):
        trials = float(read.tune.trials) if "trials" in description else 10.0
        found = select(read, title, out / read.name, epsilon=epsilon, mean=trials, seed=seed)
    result, folder = found.result, out / read.name / found.result.folder
    if json_:
        row = found.row.model_dump(mode="json")
        facts = {"epsilon": result.epsilon, "delta": result.delta, "score": found.score}
        show_json({"row": row, **facts, "report": result.report.to_json(), "folder": str(folder)})
        return
    console.print(by_group(result.report.to_json()))
    show(f"({NOT_COVERED})")
    console.print()
    show_statement(result.statement)
    console.print()
    show(f"In {folder}: the weights, the statement, the result.")


def _stopped(done: int, total: int, folder: Path) -> str:
    finished = f"{done} of {total} runs are finished" if total else "no run was started"
    return (
        f"stopped: {finished} and kept in {folder}. The search is seeded: to go on, give the same "
        f"command again, and what is finished is not repeated: {same_command()}"
    )


def _row_json(found: Tuning, title: str) -> dict[str, Any]:
    best, spread = found.best(title), found.sensitivity[title]
    return {
        "method": title,
        "best": spread.best,
        "median": spread.median,
        "near": spread.near,
        "learning_rate": best.learning_rate,
        "settings": best.settings,
        "importance": spread.importance,
    }


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
