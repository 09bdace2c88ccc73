"""``plumbline train``: one private run, on a person's own data or of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from plumbline.cli.app import Json, app, console, examples, note
from plumbline.cli.interrupts import stopping_after_the_step
from plumbline.cli.options import Ledger, Limit, Out, Recipe, Seed, described
from plumbline.cli.progress import watching_one
from plumbline.cli.run_summary import settle, show_run


@app.command(
    epilog=examples(
        "plumbline train --data my.csv --target income --sensitive sex --epsilon 3",
        "plumbline train --data my.csv --target income --sensitive sex --sensitive race "
        "--epsilon 1 --method global-adapt --set clip=0.5 --epochs 20",
        "plumbline train --data my.parts:visits --model my.parts:network --method my.rules:Soft",
        "plumbline train runs/my/Global-Adapt-* --threshold auto   (that run again, changed)",
        "plumbline train demo-untuned --method DPSGD   (a run of that recipe)",
        "torchrun --nproc-per-node 2 -m plumbline train demo-untuned   (by two processes)",
    )
)
@described
def train(
    description: dict[str, Any],
    recipe: Recipe = None,
    ledger: Ledger = None,
    limit: Limit = None,
    seed: Seed = None,
    out: Out = Path("runs"),
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Log besides: csv and tensorboard in the folder, mlflow as it is set up; may be "
            "repeated.",
            metavar="csv|tensorboard|mlflow",
            show_default="nowhere",
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on also if over a twentieth of the steps were lost.",
        ),
    ] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Write the HTML page.")] = True,
    json_: Json = False,
) -> None:
    """Trains one model privately, evaluates it by group, and states the guarantee in words.

    Ctrl-C stops after a step and saves; the same command goes on from there.
    """
    from plumbline import report
    from plumbline.cli.torchrun import launched
    from plumbline.instruments import training
    from plumbline.instruments.describing import recipe_of
    from plumbline.instruments.rows import METHOD

    if recipe is None:
        description.setdefault("method", METHOD)
        description.setdefault("seeds", [0])
    made = recipe_of(recipe, **description)
    with launched():
        root = out / made.name
        made = settle(
            made, root, description, seed=seed, ledger=ledger, limit=limit, to_release=True
        )
        spec = training.spec_of(made, seed)
        folder = out / made.name / spec.folder
        with stopping_after_the_step(folder):
            announce(spec, folder)
            with watching_one(spec.name) as on_progress:
                found = training.train(
                    made,
                    seed=seed,
                    folder=out,
                    ledger=ledger,
                    log=log or (),
                    accept_loss=accept_loss,
                    on_progress=on_progress,
                )
            first = not console.quiet  # of several processes, the one that speaks
            show_run(found, json_, report.write(found.folder) if page and first else None)


def announce(spec: Any, folder: Path) -> None:
    """Where a run stands, and what a crash could cost it."""
    from plumbline.experiments.files import CHECKPOINT, RESULT
    from plumbline.experiments.running import RESERVE
    from plumbline.training.keeping import crash_cost

    recipe = spec.recipe
    method = recipe.methods[0].build() if len(recipe.methods) == 1 else None
    if method is not None and method.unbounded_reason is not None:
        note(f"No guarantee: {method.unbounded_reason}.")
    if (folder / RESULT).is_file():
        note(f"This run is finished: its result is read from {folder}.")
        return
    if (folder / CHECKPOINT).is_file():
        note(f"Going on with the run in {folder}.")
    bands = 1 if spec.method.noise is None else spec.method.noise.bands
    if bands > 1:
        kept = 2 * (bands - 1)
        note(
            f"Noise is correlated over {bands} steps: {kept} vectors of the size "
            f"of all parameters are kept in memory, {8 * kept} bytes for each parameter, and gone "
            "through in each step."
        )
    repeatable = spec.random_seed is not None and bands == 1
    note(crash_cost(kept=True, repeatable=repeatable, ahead=RESERVE))
