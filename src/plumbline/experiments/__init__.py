"""Recipes, runs, comparisons, equal tuning, verification, and the papers' tables."""

from plumbline.experiments.comparing import MethodRow, Table, compare
from plumbline.experiments.judging import Verdict
from plumbline.experiments.loading import measure
from plumbline.experiments.pool import Progress
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.reproducing import Reproduction, reproduce
from plumbline.experiments.results import RunResult
from plumbline.experiments.running import run
from plumbline.experiments.selecting import Selected, select
from plumbline.experiments.specs import RunSpec
from plumbline.experiments.tuning import Sensitivity, Trial, Tuning, tune
from plumbline.experiments.verification import Verification, verify

__all__ = [
    "MethodRow",
    "Progress",
    "Recipe",
    "RecipeError",
    "Reproduction",
    "RunResult",
    "RunSpec",
    "Selected",
    "Sensitivity",
    "Table",
    "Trial",
    "Tuning",
    "Verdict",
    "Verification",
    "compare",
    "measure",
    "reproduce",
    "run",
    "select",
    "tune",
    "verify",
]
