"""The instruments, for anybody's objects: ``train``, ``tune``, ``compare``, ``diagnose``.

Each takes a recipe, or the parts of a run as objects, names or references (``Description``). What
they made is read by ``load`` and shipped by ``export``. The commands of the command line are thin
calls of these.
"""

from plumbline.experiments.exporting import export
from plumbline.instruments.comparing import Comparison, compare, tune
from plumbline.instruments.describing import Description, comparison_of, recipe_of
from plumbline.instruments.diagnosing import Diagnosis, diagnose
from plumbline.instruments.loading import Exported, Loaded, Trained, load
from plumbline.instruments.training import train

__all__ = [
    "Comparison",
    "Description",
    "Diagnosis",
    "Exported",
    "Loaded",
    "Trained",
    "compare",
    "comparison_of",
    "diagnose",
    "export",
    "load",
    "recipe_of",
    "train",
    "tune",
]
