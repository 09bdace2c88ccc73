"""Python objects as parts of a run: what a recipe calls them, and where they are found again.

A recipe holds plain values. An object that has a name of its own (a registered part, a function or
class of a module) is called by it. Any other is kept here while the process lives, under a token
such as ``object:Net#3f2a91c0`` that stands in the recipe; worker processes get the objects with
their runs. A run folder with such a token can be read anywhere, but the run can only go on where
the same object is given again.
"""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import torch

from plumbline.registry import MARK, Registry, UnknownPart, imported
from plumbline.training.run_identity import facts_of

OBJECTS: dict[str, Any] = {}
"""The objects given in this process, by token."""

_PREFIX = f"object{MARK}"


def is_object(reference: str) -> bool:
    """Whether a reference in a recipe is the token of an object."""
    return reference.startswith(_PREFIX)


def found(registry: Registry[Any], reference: str) -> Any:
    """A part by name, by ``package.module:attribute`` or by token; None for an absent object."""
    return OBJECTS.get(reference) if is_object(reference) else registry.find(reference)


def present(registry: Registry[Any], reference: str) -> Any:
    """The same, for whoever needs it.

    Raises:
        UnknownPart: If it is an object that was not given in this process.
    """
    if is_object(reference) and reference not in OBJECTS:
        raise UnknownPart(
            f"The {registry.kind} {reference!r} was given as a Python object, which this process "
            "does not have. Give the same object again, in Python."
        )
    return found(registry, reference)


def reference_to(
    registry: Registry[Any], part: Any, *, label: str = "", private: bool = False
) -> str:
    """What a recipe calls a part: its name, its module and attribute, or a token.

    Args:
        registry: Of its kind.
        part: A reference already, or an object.
        label: What to call an object, by default after its class.
        private: Whether it is data, whose content no name may tell anything of.
    """
    if isinstance(part, str):
        return part
    name = registry.name_of(part)
    if name is not None:
        return name
    called = getattr(part, "__qualname__", "")
    where = f"{getattr(part, '__module__', '')}{MARK}{called}"
    if called and not where.startswith("__main__") and _leads_to(where, part):
        return where
    token = f"{_PREFIX}{label or called or type(part).__qualname__}".replace("<", "").replace(
        ">", ""
    )
    token += "" if private else f"#{_fingerprint(part)}"
    OBJECTS[token] = part
    return token


def _leads_to(reference: str, part: Any) -> bool:
    try:
        return imported(reference) is part
    except UnknownPart:
        return False


def _fingerprint(part: Any) -> str:
    """A digest that differs for objects that would make other runs."""
    facts: Any
    if isinstance(part, torch.nn.Module):
        facts = facts_of([repr(part), list(part.state_dict().items())], "module")
    elif inspect.isroutine(part) or inspect.isclass(part):
        facts = _source(part)
    else:
        facts = facts_of(part, "part")
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:8]


def _source(part: Any) -> str:
    try:
        return inspect.getsource(part)
    except (OSError, TypeError):  # typed at a prompt
        code = getattr(part, "__code__", None)
        return repr(part) if code is None else f"{code.co_code.hex()} {code.co_consts!r}"
