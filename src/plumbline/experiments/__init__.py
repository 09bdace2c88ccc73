"""Recipes, runs, comparisons, equal tuning, verification, and the papers' tables."""

from plumbline.experiments.comparing import ComparisonTable, MethodRow, compare
from plumbline.experiments.loading import measure
from plumbline.experiments.paper_verdicts import PaperVerdict
from plumbline.experiments.pool import Progress
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.experiments.releasing import mark_released
from plumbline.experiments.reproducing import Reproduction, reproduce
from plumbline.experiments.run_result import RunResult
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import run
from plumbline.experiments.selecting import Selected, select
from plumbline.experiments.tuning import Sensitivity, Trial, Tuning, tune
from plumbline.experiments.verification import Verification, verify

__all__ = [
    "ComparisonTable",
    "MethodRow",
    "PaperVerdict",
    "Progress",
    "Recipe",
    "RecipeError",
    "Reproduction",
    "RunResult",
    "RunSpec",
    "Selected",
    "Sensitivity",
    "Trial",
    "Tuning",
    "Verification",
    "compare",
    "mark_released",
    "measure",
    "reproduce",
    "run",
    "select",
    "tune",
    "verify",
]
