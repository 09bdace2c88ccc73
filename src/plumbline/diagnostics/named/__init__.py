"""The diagnostics that have a name: every module here is imported, and registers its own.

A new one is one file with one function, decorated with ``@diagnostic``.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
