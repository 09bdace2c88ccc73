"""A recipe's first row as a run in memory, for studies that look at it more closely than a probe.

Nothing is written, and no ledger is kept: what comes of it is a figure, not a model.
"""

from __future__ import annotations

from plumbline.data import Splits
from plumbline.experiments.loading import load_data
from plumbline.experiments.recipe import Recipe
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import started
from plumbline.training import Private


def first_run(recipe: Recipe, seed: int) -> tuple[RunSpec, Private, Splits]:
    """The run of the recipe's first row before its first step, and its data."""
    spec = RunSpec(recipe, recipe.methods[0], seed)
    splits = load_data(spec)
    return spec, started(spec, splits), splits
