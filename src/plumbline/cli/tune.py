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
from plumbline.cli.compare import Out, Workers
from plumbline.cli.interrupts import stopping
from plumbline.cli.names import method_of, recipe_at
from plumbline.cli.progress import watching
from plumbline.cli.run_summary import by_group

if TYPE_CHECKING:
    from plumbline.experiments import Recipe
    from plumbline.experiments.tuning import Tuning


@app.command(
    epilog=examples(
        "plumbline tune demo-untuned --trials 20",
        "plumbline compare runs/demo-untuned/tuned.toml   (both, as given and tuned)",
        "plumbline tune demo-untuned --private-selection --epsilon 3 --method DPSGD",
    )
)
def tune(
    recipe: Annotated[str, typer.Argument(help="A recipe, by name or path.")],
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
    epsilon: Annotated[float | None, typer.Option(help="For the whole private selection.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Which method is selected privately.", show_default="the first private one"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes a private selection repeatable.", show_default="none")
    ] = None,
    out: Out = Path("runs"),
    workers: Workers = None,
    json_: Json = False,
) -> None:
    """Searches settings, equally for every method, and writes a recipe with the tuned rows."""
    read = recipe_at(recipe)
    if private_selection:
        if epsilon is None:
            raise WrongUse("--private-selection needs --epsilon: what the whole choice may cost.")
        _select(read, method_of(read, method).title, trials, epsilon, seed, out, json_)
        return
    for name, value in (("--epsilon", epsilon), ("--method", method), ("--seed", seed)):
        if value is not None:
            raise WrongUse(f"{name} belongs to --private-selection; `tune` searches every method.")
    if trials is not None:
        read = read.model_copy(update={"tune": read.tune.model_copy(update={"trials": trials})})
    _search(read, out / read.name, workers, json_)


def _search(recipe: Recipe, folder: Path, workers: int | None, json_: bool) -> None:
    from plumbline.experiments.tuning import NOT_COVERED
    from plumbline.experiments.tuning import tune as search

    with watching("trials") as watch, stopping(lambda: _stopped(watch.done, watch.total, folder)):
        found = search(recipe, folder, workers=workers, on_progress=watch)
    path = found.write(folder)
    if json_:
        show_json(
            {
                "recipe": str(path),
                "rows": [_plain(found, title) for title in found.trials],
                "not_covered": NOT_COVERED,
            }
        )
        return
    objective = recipe.tune.objective
    shown = table("method", f"best {objective}", "median", "settings found")
    shown.columns[-1].justify = "left"
    for title in found.trials:
        row = _plain(found, title)
        settings = {"learning rate": row["learning_rate"], **row["settings"]}
        words = ", ".join(f"{name} {_short(value)}" for name, value in settings.items())
        shown.add_row(title, f"{row['best']:.4g}", f"{row['median']:.4g}", words)
    console.print(shown)
    show(f"{objective} of the records held out, over {recipe.tune.trials} trials for each method.")
    show(f"Not covered by epsilon: {NOT_COVERED}.")
    show(f"The recipe with the tuned rows: {path}. To run it: plumbline compare {path}")


def _select(
    recipe: Recipe,
    title: str,
    trials: int | None,
    epsilon: float,
    seed: int | None,
    out: Path,
    json_: bool,
) -> None:
    from plumbline.experiments.selecting import select
    from plumbline.fairness import NOT_COVERED

    folder = out / recipe.name / f"selected-{title}".replace(" ", "-")
    options: dict[str, Any] = {} if trials is None else {"mean": float(trials)}
    message = (
        "stopped. A private selection keeps nothing until it is finished: what the candidates did "
        f"is deleted, and was not disclosed. To start it again: {same_command()}"
    )
    with (
        aside.status(f"selecting among candidates of {title} (their number is a secret)"),
        stopping(lambda: message),
    ):
        found = select(recipe, title, folder, epsilon=epsilon, seed=seed, **options)
    if json_:
        row = found.row.model_dump(mode="json")
        facts = {"epsilon": found.epsilon, "delta": found.delta, "score": found.score}
        report = found.report.to_json()
        show_json({"row": row, **facts, "report": report, "folder": found.folder})
        return
    console.print(by_group(found.report.to_json()))
    show(f"({NOT_COVERED})")
    console.print()
    show_statement(found.statement)
    console.print()
    show(f"In {found.folder}: the weights, the statement, the result.")


def _stopped(done: int, total: int, folder: Path) -> str:
    finished = f"{done} of {total} runs are finished" if total else "no run was started"
    return (
        f"stopped: {finished} and kept in {folder}. The search is seeded: to go on, give the same "
        f"command again, and what is finished is not repeated: {same_command()}"
    )


def _plain(found: Tuning, title: str) -> dict[str, Any]:
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
