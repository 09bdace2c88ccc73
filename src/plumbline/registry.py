"""Parts by name or by reference: how recipes, the command line and Python find things.

Each kind of part (clipping, evaluation, method, diagnostic, data set, network, loss, optimizer) has
one ``Registry`` and one decorator that adds to it. Whoever defines a part outside this package adds
it in the same way, or names it where it is, as ``"package.module:attribute"``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_args, get_type_hints

Part = TypeVar("Part")
MARK = ":"
"""What stands between the module and the attribute of a reference."""
FOLLOWED: set[str] = set()
"""The references that this process has followed: its user gave them, or they were checked."""


class UnknownPart(ValueError):
    """There is no part of that name, or the reference does not lead to one."""


class WrongOptions(TypeError):
    """A part is given an option that it does not have, or lacks one that it needs."""


class Registry(Mapping[str, Part], Generic[Part]):
    """The parts of one kind, by name. ``-`` and ``_`` in a name are the same.

    Args:
        kind: What the parts are, for errors: "network".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, Part] = {}

    def __getitem__(self, name: str) -> Part:
        return self._parts[self._key(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._key(name) in self._parts

    def add(self, name: str, part: Part) -> None:
        """Adds a part, in place of an earlier one of the same definition (a module loaded again).

        Raises:
            ValueError: If another part has the name.
        """
        key = self._key(name)
        if key in self._parts and _origin(self._parts[key]) != _origin(part):
            raise ValueError(
                f"There is a {self.kind} called {key!r} already ({_origin(self._parts[key])}). "
                f"Give {_origin(part)} another name."
            )
        self._parts[key] = part

    def find(self, reference: str) -> Any:
        """A part by its name, or whatever ``"package.module:attribute"`` leads to.

        Raises:
            UnknownPart: With the nearest name, or what went wrong with the import.
        """
        if reference in self:
            return self[reference]
        if MARK in reference:
            return imported(reference, self.kind)
        raise UnknownPart(unknown(self.kind, reference, list(self)))

    def name_of(self, part: object) -> str | None:
        """The name that a part was added under, if it was."""
        return next((name for name, own in self._parts.items() if own is part), None)

    def _key(self, name: str) -> str:
        if name in self._parts:
            return name
        folded = name.replace("-", "_")
        return next((own for own in self._parts if own.replace("-", "_") == folded), name)


def imported(reference: str, kind: str = "part") -> Any:
    """What ``"package.module:attribute"`` leads to.

    Raises:
        UnknownPart: If the module cannot be imported, or has no such attribute.
    """
    module, _, attribute = reference.partition(MARK)
    what = f"The {kind} {reference!r} cannot be used: "
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise UnknownPart(
            f"{what}the module {module!r} cannot be imported ({error}). Give it as "
            "package.module:attribute, of a module that Python finds from this folder."
        ) from error
    except Exception as error:  # whatever the user's module does when it is imported
        raise UnknownPart(
            f"{what}importing {module!r} fails with {type(error).__name__}: {error}"
        ) from error
    for name in attribute.split("."):
        if not name or not hasattr(found, name):
            public = [one for one in vars(found) if not one.startswith("_")]
            raise UnknownPart(f"{what}{unknown(f'attribute of {module!r} called', name, public)}")
        found = getattr(found, name)
    FOLLOWED.add(reference)
    return found


def import_files(package: str, path: Iterable[str]) -> None:
    """Imports every file of a package, whose parts register themselves when they are imported."""
    for file in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{file.name}")


def options_of(make: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The options that a function or class takes by name, also by an unpacked ``TypedDict``."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(make).parameters
    own = {name: one for name, one in parameters.items() if one.kind in by_name}
    return own | _unpacked(make)


def _unpacked(make: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The options in ``**options: Unpack[Options]``; each may be left out."""
    for one in inspect.signature(make).parameters.values():
        if one.kind is one.VAR_KEYWORD and "Unpack[" in str(one.annotation):
            (listed,) = get_args(get_type_hints(make)[one.name])
            names = listed.__annotations__
            return {n: one.replace(name=n, kind=one.KEYWORD_ONLY, default=None) for n in names}
    return {}


def check_options(what: str, make: Callable[..., object], options: Mapping[str, Any]) -> None:
    """Refuses to call ``make`` with options that it does not have, or without those it needs.

    Args:
        what: What it makes, for errors: "The network 'resnet-9'".
        make: A function or class.
        options: What it is to be called with.

    Raises:
        WrongOptions: With the nearest option.
    """
    known = options_of(make)
    parameters = inspect.signature(make).parameters.values()
    if _unpacked(make) or not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for name in options:
            if name not in known:
                raise WrongOptions(f"{what}: {unknown('option', name, list(known))}")
    needed = [n for n, one in known.items() if one.default is one.empty and n not in options]
    if needed:
        raise WrongOptions(f"{what} needs the option {', '.join(map(repr, needed))}.")


def unknown(kind: str, name: str, names: Sequence[str]) -> str:
    """Says that there is no such thing, and what is nearest or what there is."""
    near = difflib.get_close_matches(name, names, 1)
    if near:
        return f"there is no {kind} {name!r}. Did you mean {near[0]!r}?"
    return f"there is no {kind} {name!r}. There are {', '.join(sorted(names)) or 'none'}."


def _origin(part: object) -> str:
    """Where a part is defined: the same for a module that is loaded again."""
    made = getattr(part, "make", part)
    module = getattr(made, "__module__", type(made).__module__)
    return f"{module}{MARK}{getattr(made, '__qualname__', type(made).__qualname__)}"
