"""All that a model holds, as a flat list that can be compared: tensors, counters, lists, objects.

Two walks of a model give equal lists if nothing it holds was changed between them:

| held | compared by |
| --- | --- |
| numbers, strings, None | value |
| tensors (parameters, buffers, plain attributes) | identity, version and place in memory |
| NumPy arrays | value; larger ones than 64 kB by identity |
| lists, tuples, dicts, sets, deques | items, 5 levels deep; more than 1,000 by their number |
| generators of torch, NumPy and Python | their state |
| objects of other classes that are not the standard library's | their attributes, likewise |
| everything else (functions, locks, loggers) | identity |

Modules in lists, which torch does not know, are walked too. torch's bookkeeping (hooks, modes) is
left out. Variables (``names``) are looked at less deeply.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from plumbline.gradients.holders import Holders, Mark, mark_of

Path = tuple[Any, ...]
"""From the inside out: a key, then the path of what holds it; ``()`` for the root."""


_PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), torch.Size, torch.dtype, torch.device}
)
_BOOKKEEPING = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}
_DEEPEST, _MOST, _BYTES = 5, 1000, 2**16


class Walk:
    """What was found on a walk.

    Args:
        naming: Whether to keep the paths too, which takes longer.

    Attributes:
        found: What is compared.
        paths: Where each of ``found`` is, when naming.
        still: The tensors that are not trained, each once, with their paths; without variables'.
        marks: What each of them is recognised by.
        trained: The tensors that are; their versions are not compared.
    """

    def __init__(self, *, naming: bool = False) -> None:
        self.found: list[Any] = []
        self.paths: list[Path] | None = [] if naming else None
        self.still: list[tuple[Tensor, Path]] = []
        self.marks: list[Mark] = []
        self.trained: list[tuple[Tensor, Path]] = []
        self._seen: set[int] = set()
        self._held = Holders()

    def untouched(self) -> bool:
        """Whether it is certain, at a glance, that another walk would find the same."""
        return self._held.untouched()

    def end(self) -> None:
        """To be called when everything is walked."""
        self._held.remember()

    def module(self, module: nn.Module, path: Path = ()) -> None:
        """Walks a module and all that it has."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        held = module.__dict__
        made = _made_by_hooks(module) if held["_forward_pre_hooks"] else ()
        self._held.add(held)
        self._held.watchful |= bool(made)
        for key, value in held.items():
            if key in _BOOKKEEPING or key in made:
                continue
            if key in ("_parameters", "_buffers"):
                self._held.add(value)
                for name, tensor in value.items():
                    self._value(tensor, name, path, 0)
            elif key == "_modules":
                self._held.add(value)
                for name, child in value.items():
                    self._note(id(child), name, path)
                    if child is not None:
                        self.module(child, (name, path))
            else:
                self._value(value, key, path, 0)

    def names(self, names: Mapping[str, Any], path: Path) -> None:
        """Walks variables (a class's, a function's, a Python module's): containers one level."""
        self._held.add(names)
        for name, value in names.items():
            if name.startswith("__"):
                continue
            if type(value) in _PLAIN:
                self._note(value, name, path)
            elif isinstance(value, Tensor):
                self._held.tensors.append(value)
                self._note(mark_of(value), name, path)
            else:
                self._note(id(value), name, path)
                if isinstance(value, dict | list | deque | set):
                    self._held.add(value, most=_MOST)
                    self._note(len(value), name, path)
                    if len(value) <= _MOST:
                        inside = value.values() if isinstance(value, dict) else value
                        self._note(tuple(map(id, inside)), name, path)

    def _value(self, value: Any, key: Any, path: Path, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._note(value, key, path)
        elif isinstance(value, Tensor):
            self._tensor(value, key, path)
        elif isinstance(value, nn.Module):
            self._note(id(value), key, path)
            self.module(value, (key, path))
        elif isinstance(value, _GENERATORS):
            self._held.watchful = True
            self._note(_state(value), key, path)
        else:
            self._holder(value, kind, key, path, depth)

    def _holder(self, value: Any, kind: type, key: Any, path: Path, depth: int) -> None:
        """Something that may hold others."""
        builtin = isinstance(value, dict | list | tuple | deque | set | frozenset)
        if kind is np.ndarray:
            self._held.watchful = True
            self._note(_checksum(value), key, path)
            return
        # Of two equal lists, one may take the place of the other.
        self._note(kind if builtin else id(value), key, path)
        if depth >= _DEEPEST or id(value) in self._seen:
            return
        if not builtin and (not hasattr(value, "__dict__") or _is_opaque(value, kind)):
            return
        self._seen.add(id(value))
        inside = value if builtin else vars(value)
        self._held.add(inside, most=_MOST)
        self._note(len(inside), key, path)
        if len(inside) <= _MOST:
            self._items(inside, (key, path), depth + 1)

    def _items(self, value: Any, path: Path, depth: int) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                self._note(key if type(key) in _PLAIN else id(key), key, path)
                self._value(one, key, path, depth)
        elif isinstance(value, set | frozenset):
            # They come in no order.
            self._note({one if type(one) in _PLAIN else id(one) for one in value}, "", path)
        else:
            for place, one in enumerate(value):
                self._value(one, place, path, depth)

    def _tensor(self, value: Tensor, key: Any, path: Path) -> None:
        mark = mark_of(value)
        if value.requires_grad:
            self._note((mark[0], mark[2]), key, path)
        else:
            self._note(mark, key, path)
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if value.requires_grad:
            self.trained.append((value, (key, path)))
        else:
            self._held.tensors.append(value)
            self.still.append((value, (key, path)))
            self.marks.append(mark)
        self._held.add(value.__dict__)
        self._items(value.__dict__, (key, path), _DEEPEST - 1)

    def _note(self, value: Any, key: Any, path: Path) -> None:
        self.found.append(value)
        if self.paths is not None:
            self.paths.append((key, path))


_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def _state(generator: Any) -> Any:
    """The state of a generator, to be compared."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return str(generator.get_state(legacy=False))
    return str(generator.bit_generator.state)


def _checksum(array: Any) -> tuple[Any, ...]:
    if array.dtype.hasobject or array.nbytes > _BYTES:
        return id(array), array.shape
    return array.shape, array.dtype.str, zlib.crc32(np.ascontiguousarray(array).data.cast("B"))


def _made_by_hooks(module: nn.Module) -> tuple[str, ...]:
    """The attributes that torch's older weight_norm and spectral_norm set in each forward pass."""
    hooks = module._forward_pre_hooks.values()
    return tuple(hook.name for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm))


def _is_opaque(value: Any, kind: type) -> bool:
    """Whether an object's attributes are none of our business: a class, a logger, a function."""
    if isinstance(value, type):
        return True
    package = kind.__module__.partition(".")[0]
    return kind is not SimpleNamespace and (
        package in sys.stdlib_module_names or package in ("torch", "numpy")
    )
