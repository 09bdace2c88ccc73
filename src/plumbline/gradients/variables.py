"""The variables that the user's code can reach beside a model: of classes and of Python modules.

Each is walked by itself (``attribute_walk``), and walked again if it is another object or what it
holds may have changed. A script's loop rebinds a few variables in every step, beside hundreds that
stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from plumbline.gradients.attribute_walk import Path, Walk, is_data_set
from plumbline.gradients.holders import Holders
from plumbline.gradients.own_code import is_own

Change = tuple[Path, bool]
"""Where something has changed, and whether that is the state of a random generator."""


class Place(str):
    """Where variables are that belong to no module of the model, in words."""

    __slots__ = ()


class Variables:
    """The variables of the classes and Python modules of a model's code, and of code beside it.

    Args:
        model: The model.
        beside: Modules, functions and objects that take part in a pass, such as the loss.
    """

    def __init__(self, model: nn.Module, beside: list[Any]) -> None:
        self._spaces = [_Names(names, place) for names, place in _spaces(model, beside)]

    def changed(self, model: Walk, *, naming: bool = False) -> list[Change]:
        """What has changed since the last call: of each class or module, one variable that has.

        Args:
            model: A walk of the model, which is not looked into again.
            naming: Whether to say where in the variable, which takes longer.
        """
        found = [space.look(model, naming) for space in self._spaces if not space.untouched()]
        return [change for change in found if change is not None]


class _Names:
    """The variables of one class or Python module."""

    def __init__(self, names: Mapping[str, Any], place: Place) -> None:
        self._names, self._place = names, place
        self._values: list[Any] = []
        self._walks: dict[str, tuple[Any, Walk]] = {}
        self._held = Holders()

    def untouched(self) -> bool:
        """Whether it is certain, at a glance, that another look would find the same."""
        return (
            len(self._names) == len(self._values)
            and all(map(is_, self._names.values(), self._values))
            and self._held.untouched()
        )

    def look(self, model: Walk, naming: bool) -> Change | None:
        """Takes everything as it is now; gives a change, if anything has changed."""
        before, self._walks = self._walks, {}
        changed: Change | None = None
        now = dict(self._names)
        for name, value in now.items():
            if name.startswith("__"):
                continue
            known = before.pop(name, None)
            if known is None or known[0] is not value or not known[1].untouched():
                walk = self._walk(name, value, model)
                if changed is None and (known is None or walk.found != known[1].found):
                    changed = self._path(name), False
                    if naming and known is not None:
                        changed = self._walk(name, value, model, naming=True).differing(known[1])
                known = value, walk
            self._walks[name] = known
        if before and changed is None:
            changed = self._path(next(iter(before))), False  # it is gone
        self._values = list(now.values())
        self._held = Holders.of(walk.held for _, walk in self._walks.values())
        return changed

    def _walk(self, name: str, value: Any, model: Walk, *, naming: bool = False) -> Walk:
        walk = Walk(naming=naming, known=model)
        walk.variable(value, name, (self._place, ()))
        walk.end()
        return walk

    def _path(self, name: str) -> Path:
        return name, (self._place, ())


def _spaces(model: nn.Module, beside: list[Any]) -> Iterator[tuple[Mapping[str, Any], Place]]:
    """The variables of the user's own code: of classes, of their Python modules, of functions."""
    modules = [model, *(one for one in beside if isinstance(one, nn.Module))]
    parts = [*(part for one in modules for part in one.modules()), *beside]
    classes = {base: None for part in parts for base in type(part).__mro__ if _has_variables(base)}
    sources = {base.__module__: vars(sys.modules[base.__module__]) for base in classes}
    for function in beside:
        if isinstance(function, FunctionType):
            # Code that is run from a string, say, is of no module.
            sources[function.__module__ or function.__name__] = function.__globals__
    _add_imported(sources)
    for names in sources.values():
        own = (one for one in names.values() if isinstance(one, type) and _has_variables(one))
        classes |= dict.fromkeys(own)
    for base in classes:
        yield vars(base), Place(f"the class {base.__name__}")
    for source, names in sources.items():
        yield names, Place(f"the Python module {source}")


def _add_imported(sources: dict[str, dict[str, Any]]) -> None:
    """Adds the user's own Python modules that these import, or import something from."""
    waiting = list(sources.values())
    while waiting:
        for value in list(waiting.pop().values()):
            if isinstance(value, ModuleType):
                source = value.__name__
            elif isinstance(value, type | FunctionType):
                source = value.__module__
            else:
                continue
            if source and source not in sources and source in sys.modules and is_own(source):
                sources[source] = vars(sys.modules[source])
                waiting.append(sources[source])


def _has_variables(kind: type) -> bool:
    return is_own(kind.__module__) and not is_data_set(kind)
