"""Code that a folder names: what may be called on the word of a file that comes from elsewhere.

The folder of a run or an export names its parts, some as ``package.module:attribute``, and says
what they are called with. Reading it must not run ``os:system``. Guarantee: a module that lies in
the folder is not imported, and what a reference leads to is used only if it was declared as a part
of that kind, by the kind's decorator or by its type. What a user names, in a recipe or on the
command line, is not checked: those are the user's own words, and so is a folder that the same
process wrote.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn, optim
from torch.utils.data import Dataset

from plumbline.clipping import Clipping
from plumbline.data.base import DATASETS, Splits
from plumbline.evaluation import Evaluation
from plumbline.experiments.files import FileError
from plumbline.experiments.objects import is_object
from plumbline.methods import METHODS, Method
from plumbline.models import MODELS
from plumbline.objectives import LOSSES, OPTIMIZERS
from plumbline.registry import FOLLOWED, MARK, Registry, imported

KINDS: dict[str, tuple[Registry[Any], tuple[type, ...]]] = {
    "data": (DATASETS, (Splits, Dataset)),
    "model": (MODELS, (nn.Module,)),
    "loss": (LOSSES, (nn.Module, Tensor)),
    "optimizer": (OPTIMIZERS, (optim.Optimizer,)),
    "method": (METHODS, (Method, Clipping, Evaluation)),
}
"""By a recipe's field: where its parts are registered, and of what types they are."""


class UnsafeCode(FileError):
    """A folder names code that is not run on its word alone; says why."""


def check_recipe(fields: Mapping[str, Any], folder: Path) -> None:
    """Refuses the recipe of a folder that names code which it may not.

    Diagnostics are functions that get nothing from the folder but the run itself, so for them it
    is enough that they do not lie in it.

    Args:
        fields: The content of its recipe.json, of one run or of a comparison, not yet read as a
            recipe: reading one imports and calls what it names.
        folder: Where it was found.

    Raises:
        UnsafeCode: With the reference, and what to do.
        UnknownPart: If a reference leads nowhere.
    """
    for text in _texts(fields):
        if re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", text) and not is_object(text):
            _refuse_own_code(text, folder)
    for kind, part in _parts(fields):
        name = part.get("name") if isinstance(part, dict) else None
        if not isinstance(name, str) or MARK not in name or is_object(name) or name in FOLLOWED:
            continue
        require_declared(kind, name)


def require_declared(kind: str, reference: str, folder: Path | None = None) -> None:
    """Refuses a reference to something that was not declared as a part of its kind.

    Args:
        kind: The recipe's field, as in ``KINDS``.
        reference: Its ``package.module:attribute``.
        folder: Where it was found, if code in it is to be refused too.

    Raises:
        UnsafeCode: If it is not declared, or its code is in the folder.
        UnknownPart: If there is no such thing.
    """
    if folder is not None:
        _refuse_own_code(reference, folder)
    registry, types = KINDS[kind]
    if reference in registry:
        return
    trusted = reference in FOLLOWED
    if _is_declared(imported(reference, registry.kind), registry, types):
        return
    if not trusted:
        FOLLOWED.discard(reference)
    names = " or ".join(one.__name__ for one in types)
    raise UnsafeCode(
        f"The {registry.kind} {reference!r} is not declared to be one, and nothing else is called "
        "on the word of a folder. If it is your own, give it the decorator of its kind "
        f"(docs/own-parts.md), or declare that it returns a {names}."
    )


def _is_declared(found: Any, registry: Registry[Any], types: tuple[type, ...]) -> bool:
    """Whether something is a part, a class of parts, or a function declared to return one."""
    declared = (inspect.unwrap(getattr(part, "make", part)) for part in registry.values())
    if any(one is found for one in declared):
        return True
    made = found
    if inspect.isfunction(found):
        try:
            made = typing.get_type_hints(found).get("return")
        except Exception:  # a name that is only there for type checkers
            return False
    return isinstance(made, types) or (isinstance(made, type) and issubclass(made, types))


def _refuse_own_code(reference: str, folder: Path) -> None:
    """Looks where a module would be imported from, without importing anything."""
    spec = importlib.util.find_spec(reference.partition(MARK)[0].partition(".")[0])
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    if any(Path(one).resolve().is_relative_to(folder.resolve()) for one in places):
        raise UnsafeCode(
            f"{reference!r} is code in {folder} itself, which is not run. If you trust it, move it "
            "to where your own packages are."
        )


def _parts(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of a recipe with their kinds, those of its rows too."""
    for kind in KINDS:
        yield kind, fields.get(kind)
    for row in (fields.get("method"), *(fields.get("methods") or ())):
        if isinstance(row, dict):
            yield "method", row
            for kind in KINDS:
                yield kind, row.get(kind)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
