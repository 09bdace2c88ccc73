"""The diagnostics that have a name: every module here is imported, and registers its own.

A new one is one file with one function, decorated with ``@diagnostic``.
"""

from plumbline.registry import import_files

import_files(__name__, __path__)
