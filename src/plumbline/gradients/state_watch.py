"""Refuses a model that keeps something of the records it is shown.

Around a pass over records, nothing that a model holds may change: a buffer or parameter that is
written (running statistics, ``max_norm``, a tensor hook), a tensor that is kept
(``self.kept = x``), a counter. It would carry records to later passes, or out of the training
altogether. Everything is compared by identities, versions and values (``attribute_walk``). Writes
through ``.data`` leave no version and are found by checksums (``tensor_contents``): about 2^20
elements of what is not trained in every pass, and everything whenever ``check_all`` is called. Of
the parameters that are trained, which change between passes, a few thousand elements are compared
around some passes, drawn at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.gradients.attribute_walk import Path, Walk
from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.holders import Mark
from plumbline.gradients.opaque import refuse_opaque
from plumbline.gradients.own_code import is_own
from plumbline.gradients.tensor_contents import TensorContents, Window
from plumbline.gradients.variables import Place, Variables

_LIMIT, _WINDOWS = 2**20, 1 / 8


class StateWatch:
    """Watches a model, and the variables that the user's code beside it can reach.

    Between passes the model may be changed at will, though not through ``.data``. A cache that does
    not depend on records must be there before the first pass: run the model once on made-up input.

    Args:
        model: The model.
        generator: Decides what is compared where that is not everything; to be kept secret.
        beside: Functions that take part in the pass, such as the loss.

    Raises:
        UnsupportedModelError: If a part of the model is compiled, and cannot be looked into.
    """

    def __init__(
        self, model: nn.Module, generator: torch.Generator, beside: Iterable[Any] = ()
    ) -> None:
        self._model = model
        self._generator = generator
        parts = list(_parts_of(beside))
        for module in (model, *(one for one in parts if isinstance(one, nn.Module))):
            refuse_opaque(module)
        self._beside = [(one, _place(one)) for one in parts]
        self._variables = Variables(model, parts)
        self._contents = TensorContents(generator)
        self._marks: list[Mark] = []
        self._coin = random.Random(int(torch.randint(2**62, (), generator=generator)))
        self._now = self._walk()
        self._take()
        self._variables.changed(self._now)
        self.changes = 0  # how often anything but what is trained was changed between passes

    @contextmanager
    def step(self, *, trained: bool = True, goes_on: bool = False) -> Iterator[None]:
        """Around one pass.

        Args:
            trained: Whether the parameters that are trained must stay as they are too.
            goes_on: Whether none of the user's code has run since the pass before.

        Raises:
            RecordsMixError: Naming what changed, and the module that has it.
        """
        if not goes_on:
            self._look()
        weights = self._now.trained if trained else []
        versions = [tensor._version for tensor, _ in weights]
        window = None
        if weights and self._coin.random() < _WINDOWS:
            window = Window([(path, tensor) for tensor, path in weights], self._generator)
        yield
        self._compare()
        for (tensor, path), version in zip(weights, versions, strict=True):
            if tensor._version != version:
                raise self._written(path)
        found = self._contents.differing(_LIMIT) or (window and window.differing())
        if found:
            raise self._written(found)

    def check_all(self) -> None:
        """Compares the contents of everything that is not trained with what they were.

        Raises:
            RecordsMixError: Naming what changed.
        """
        self._look()
        path = self._contents.differing()
        if path:
            raise self._written(path)

    def _walk(self, *, naming: bool = False) -> Walk:
        walk = Walk(naming=naming)
        walk.module(self._model)
        for one, place in self._beside:
            walk.beside(one, (place, ()))
        walk.end()
        return walk

    def _look(self) -> None:
        """Takes everything as it is now: it may have been changed between passes."""
        changed = False
        if not self._now.untouched():
            before, self._now = self._now, self._walk()
            changed = self._now.found != before.found
            self._take()
        self.changes += bool(self._variables.changed(self._now)) or changed

    def _take(self) -> None:
        marks = self._now.marks
        if marks != self._marks:
            known = set(self._marks)
            changed = {mark[0] for mark in marks if mark not in known}
            self._contents.take([(path, tensor) for tensor, path in self._now.still], changed)
            self._marks = marks

    def _compare(self) -> None:
        if not self._now.untouched():
            before, self._now = self._now, self._walk()
            if self._now.found != before.found:
                raise self._written(*self._walk(naming=True).differing(before))
        for change in self._variables.changed(self._now, naming=True):
            raise self._written(*change)

    def _written(self, path: Path, random: bool = False) -> RecordsMixError:
        """The error for what is at the end of a path."""
        attribute = _RANDOM if random else _ATTRIBUTE
        keys: list[Any] = []
        while path:
            keys.insert(0, path[0])
            path = path[1]
        if isinstance(keys[0], Place):
            inside = "".join(f"[{key!r}]" for key in keys[2:])
            return _error(f"The variable '{keys[1]}{inside}' of {keys[0]}", attribute)
        module, name = self._model, []
        while len(keys) > 1 and keys[0] in module._modules:
            name.append(keys.pop(0))
            module = module._modules[name[-1]]  # type: ignore[assignment]
        kind = type(module).__name__
        owner = f"the module '{'.'.join(name)}' ({kind})" if name else f"the model itself ({kind})"
        own = keys[0]
        if own in module._buffers:
            return _error(f"The buffer '{own}' of {owner}", _BUFFER)
        if own in module._parameters:
            trained = getattr(module, own).requires_grad
            return _error(
                f"The {'' if trained else 'frozen '}parameter '{own}' of {owner}", _PARAMETER
            )
        inside = "".join(f"[{key!r}]" for key in keys[1:])
        held = module.__dict__.get(own)
        kept = isinstance(held, Tensor) or (inside and isinstance(_inside(held, keys[1:]), Tensor))
        what = "The tensor that is kept in the attribute" if kept else "The attribute"
        return _error(f"{what} '{own}{inside}' of {owner}", _KEPT if kept else attribute)


def _error(what: str, remedy: str) -> RecordsMixError:
    return RecordsMixError(
        f"{what} changes as the model looks at records: it would carry something of them to later "
        f"steps, or out of the training. {remedy} Then build the model anew: this one has changed."
    )


_BUFFER = (
    "Build the layer without running statistics, or use GroupNorm "
    "(plumbline.suggest_fixes(model) does)."
)
_PARAMETER = (
    "Build the layer without what rewrites it (an embedding's max_norm, say), and write to "
    "parameters between steps only, with torch.no_grad() and not through .data."
)
_KEPT = "Return what you want to look at, or look at it outside of the training."
_ATTRIBUTE = (
    "If it is a cache that does not depend on records (of positions, say), fill it before the "
    "training: run the model once on made-up input. If not, compute it anew for each record, and "
    "count calls outside of the model."
)
_RANDOM = (
    "A generator of your own goes on from record to record. Draw from the global functions of "
    "torch (torch.rand), NumPy (np.random.rand) or Python (random.random), which get each record's "
    "own numbers."
)


def _inside(held: Any, keys: list[Any]) -> Any:
    for key in keys:
        try:
            held = vars(held)[key] if hasattr(held, "__dict__") else held[key]
        except (KeyError, IndexError, TypeError):
            return None
    return held


def _parts_of(beside: Iterable[Any]) -> Iterator[Any]:
    """What these are made of: modules, the user's own functions, objects."""
    waiting = list(beside)
    while waiting:
        one = waiting.pop()
        if isinstance(one, partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, MethodType):
            waiting += [one.__self__, one.__func__]
        elif isinstance(one, FunctionType):
            source: str | None = one.__module__
            if source is None or is_own(source):
                yield one
        elif not isinstance(one, Tensor):
            if not isinstance(one, nn.Module):
                held = getattr(one, "__dict__", {}).values()
                waiting += [x for x in held if isinstance(x, partial | MethodType | FunctionType)]
            yield one


def _place(one: Any) -> Place:
    if isinstance(one, FunctionType):
        return Place(f"the function {one.__name__}")
    kind = "module" if isinstance(one, nn.Module) else "object"
    return Place(f"the {kind} {type(one).__name__} beside the model")
