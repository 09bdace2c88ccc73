"""The instruments, for anybody's objects: ``train``, ``tune``, ``compare``, ``diagnose``, ``load``.

Each takes a recipe, or the parts of a run as objects, names or references (``Description``). The
commands of the command line are thin calls of these.
"""

from plumbline.instruments.comparing import Comparison, compare, tune
from plumbline.instruments.describing import Description, recipe_of
from plumbline.instruments.diagnosing import Diagnosis, diagnose
from plumbline.instruments.training import Trained, load, train

__all__ = [
    "Comparison",
    "Description",
    "Diagnosis",
    "Trained",
    "compare",
    "diagnose",
    "load",
    "recipe_of",
    "train",
    "tune",
]
