"""Recipes, runs and comparisons."""

from plumbline.experiments.comparing import MethodRow, Table, compare
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.running import RunResult, RunSpec, measure, run

__all__ = [
    "MethodRow",
    "Recipe",
    "RecipeError",
    "RunResult",
    "RunSpec",
    "Table",
    "compare",
    "measure",
    "run",
]
