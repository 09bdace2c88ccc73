"""The papers' networks, built by name: ``build("dpnas-cifar")``.

Every file in this folder is imported and registers its networks; dependencies beyond torch are
imported when a network is built.
"""

import importlib
import pkgutil

from plumbline.models.registry import MODELS, accepts, build

__all__ = ["MODELS", "accepts", "build"]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
