"""``train``: one run on anybody's data."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Unpack

from plumbline.experiments.charging import apply_limit
from plumbline.experiments.compatibility import check_fits
from plumbline.experiments.files import RESULT
from plumbline.experiments.recipe import Recipe
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import run
from plumbline.experiments.settling import settled
from plumbline.instruments.describing import Description, recipe_of
from plumbline.instruments.loading import Trained, load_run
from plumbline.instruments.rows import METHOD


def spec_of(recipe: Recipe, seed: int | None = None) -> RunSpec:
    """The run of a recipe's first row; a seed that is given draws its noise too."""
    if seed is None:
        return RunSpec(recipe, recipe.methods[0], recipe.seeds[0])
    return RunSpec(recipe, recipe.methods[0], seed, noise_seed=seed)


def train(
    recipe: Recipe | str | os.PathLike[str] | None = None,
    *,
    seed: int | None = None,
    folder: str | os.PathLike[str] = "runs",
    ledger: str | os.PathLike[str] | None = None,
    limit: float | None = None,
    log: Collection[str] = (),
    accept_loss: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    **description: Unpack[Description],
) -> Trained:
    """Trains one model privately, or reads a run that is finished already.

    Args:
        recipe: A recipe, its path or its name; the folder of a run, to make it again with what is
            given beside it; or leave it out and describe the run.
        seed: Makes the run repeatable, and its noise known to whoever knows the seed. Without it
            the noise of a run on one's own data is secure.
        folder: Runs are kept in a folder of the recipe's name below this one.
        ledger: Where the run is charged; by default a ledger in its folder and, on a table, before
            that the ledger of the table, in the user's state folder.
        limit: The epsilon that all released models may cost together, at the run's delta. It is
            kept in the ledger; a run that could not be released within it is refused.
        log: Where to log besides: "csv" and "tensorboard" in the run's folder, "mlflow" as it is
            set up. What is written is marked covered by epsilon, or not.
        accept_loss: Go on, and end, also if more than a twentieth of the steps were lost.
        on_progress: Called with (done, total) after each step.
        description: The parts of the run.
    """
    if recipe is None:
        description.setdefault("method", METHOD)
        description.setdefault("seeds", [0])
    made = recipe_of(recipe, **description)
    root = Path(folder) / made.name
    apply_limit(made, ledger, limit, to_release=True)
    made = settled(made, root, seed=seed, ledger=ledger).recipe
    spec = spec_of(made, seed)
    if not (root / spec.folder / RESULT).is_file():
        check_fits(spec)
    run(spec, root, on_progress, ledger=ledger, log=log, accept_loss=accept_loss)
    return load_run(root / spec.folder)
