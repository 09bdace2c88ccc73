"""Which code is the user's own, and the variables that it can reach."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from types import FunctionType
from typing import Any


@cache
def is_own(source: str) -> bool:
    """Whether a Python module is the user's: not installed, and not of Python or this package."""
    package = source.partition(".")[0]
    if package == "plumbline" or package in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(source), "__file__", None) or ""
    return source in sys.modules and not {"site-packages", "dist-packages"} & set(_parts(file))


def _parts(file: str) -> list[str]:
    return file.replace("\\", "/").split("/")


class Cells(Mapping[str, Any]):
    """The variables that a function has from the function around it."""

    def __init__(self, function: FunctionType) -> None:
        names = function.__code__.co_freevars
        self._cells = dict(zip(names, function.__closure__ or (), strict=True))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # not set yet
            return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)
