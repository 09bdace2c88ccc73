"""The papers' networks, built by name, ``build("dpnas-cifar")``, and your own (``@model``).

Every file in this folder is imported and registers its networks; dependencies beyond torch are
imported when a network is built.
"""

from plumbline.models.registry import MODELS, accepts, build, model
from plumbline.registry import import_files

__all__ = ["MODELS", "accepts", "build", "model"]

import_files(__name__, __path__)
