"""All that a model holds, as a flat list that can be compared: tensors, counters, lists, objects.

Two walks of a model give equal lists if nothing it holds was changed between them:

| held | compared by |
| --- | --- |
| numbers, strings, None | value |
| tensors (parameters, buffers, plain attributes) | identity, version and place in memory |
| NumPy arrays | checksum; of those above 4 MB, of a part |
| lists, tuples, dicts, sets, deques | items, 5 levels deep; of more than 1,000, a sample |
| generators of torch, NumPy and Python | their state |
| iterators and queues | where they are, and what they hold |
| the user's own functions with ``lru_cache`` | how many values they have computed |
| the user's own functions, bound methods, ``partial`` | closures, defaults, attributes, arguments |
| objects of other classes that are not the standard library's | their attributes, likewise |
| everything else (locks, loggers, functions of other packages) | identity |

Modules in lists, which torch does not know, are walked too. torch's bookkeeping (hooks, modes) is
left out. Variables (``variable``) are looked at less deeply: containers by the identity of their
items, objects only of the user's own classes. Data sets among them are left out: they may keep what
they read, and ``training.records`` sees to their generators.
"""

from __future__ import annotations

import gc
import queue
import sys
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from itertools import count
from types import CodeType, FunctionType, GeneratorType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from plumbline.gradients.held_generators import generator_of, in_slots, state_of
from plumbline.gradients.holders import Holders, Mark, SomeItems, mark_of
from plumbline.gradients.own_code import Cells, is_own

Path = tuple[Any, ...]
"""From the inside out: a key, then the path of what holds it; ``()`` for the root."""


_PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), torch.Size, torch.dtype, torch.device}
    | {range, slice, type(Ellipsis)}
)
_BOOKKEEPING = frozenset(vars(nn.Module())) - {"_parameters", "_buffers", "_modules"}
_CONTAINERS = (dict, list, tuple, deque, set, frozenset, Cells)
_DEEPEST, _DEEPEST_OF_VARIABLES, _MOST, _BYTES = 5, 3, 1000, 2**22


class Walk:
    """What was found on a walk.

    Args:
        naming: Whether to keep the paths too, which takes longer.
        known: A walk of what need not be looked into again.

    Attributes:
        found: What is compared.
        held: The same, for a comparison at a glance.
        paths: Where each of ``found`` is, when naming.
        still: The tensors that are not trained, each once, with their paths; without variables'.
        marks: What each of them is recognised by.
        trained: The tensors that are; their versions are not compared.
        random: Which of ``found`` are states of generators, when naming.
    """

    def __init__(self, *, naming: bool = False, known: Walk | None = None) -> None:
        self.found: list[Any] = []
        self.paths: list[Path] | None = [] if naming else None
        self.still: list[tuple[Tensor, Path]] = []
        self.marks: list[Mark] = []
        self.trained: list[tuple[Tensor, Path]] = []
        self._seen: set[int] = set()
        self._known = known._seen if known is not None else frozenset[int]()
        self.random: set[int] = set()
        self.held = Holders()
        self._of_variables = False

    def untouched(self) -> bool:
        """Whether it is certain, at a glance, that another walk would find the same."""
        return self.held.untouched()

    def differing(self, before: Walk) -> tuple[Path, bool]:
        """Where it first differs from an earlier walk, and whether in a random generator's state.

        To be called on a walk that kept the paths, of something that has changed.
        """
        assert self.paths is not None
        pairs = enumerate(zip(self.found, before.found, strict=False))
        different = (place for place, (new, old) in pairs if new != old)
        place = next(different, len(self.paths) - 1)
        return self.paths[place], place in self.random

    def end(self) -> None:
        """To be called when everything is walked."""
        self.held.remember()

    def module(self, module: nn.Module, path: Path = ()) -> None:
        """Walks a module and all that it has."""
        if self._is_seen(module):
            return
        self._seen.add(id(module))
        held = module.__dict__
        made = _made_by_hooks(module) if held["_forward_pre_hooks"] else ()
        self.held.add(held)
        self.held.watchful |= bool(made)
        for key, value in held.items():
            if key in _BOOKKEEPING or key in made:
                continue
            if key in ("_parameters", "_buffers"):
                self.held.add(value)
                for name, tensor in value.items():
                    self._value(tensor, name, path, 0)
            elif key == "_modules":
                self.held.add(value)
                for name, child in value.items():
                    self._note(id(child), name, path)
                    if child is not None:
                        self.module(child, (name, path))
            else:
                self._value(value, key, path, 0)

    def beside(self, one: Any, path: Path) -> None:
        """Walks what takes part in a pass beside the model: a loss, say."""
        if isinstance(one, nn.Module):
            self.module(one, path)
            return
        holders = [getattr(one, "__dict__", {}), in_slots(one)]
        if isinstance(one, FunctionType):
            holders.append(Cells(one))
            defaults = (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values())
            holders.append({f"default {place}": value for place, value in enumerate(defaults)})
        self.held.watchful |= bool(holders[1])
        for held in holders:
            self.held.add(held)
            self._items(held, path, 0)

    def variable(self, value: Any, name: str, path: Path) -> None:
        """Walks a variable of a class, a function or a Python module."""
        self._of_variables = True
        if not isinstance(value, dict | list | deque | set):
            self._value(value, name, path, _DEEPEST - _DEEPEST_OF_VARIABLES)
            return
        self._note(id(value), name, path)
        self.held.add(value, most=_MOST)
        self._note(len(value), name, path)
        inside = value.values() if isinstance(value, dict) else value
        self._note(tuple(map(id, inside if len(value) <= _MOST else SomeItems(value))), name, path)
        if len(value) <= _MOST and not self._is_seen(value):
            self._seen.add(id(value))
            for place, one in enumerate(inside):
                if type(one) not in _PLAIN and not isinstance(one, (Tensor, *_CONTAINERS)):
                    self._value(one, place, (name, path), _DEEPEST - _DEEPEST_OF_VARIABLES + 1)

    def _value(self, value: Any, key: Any, path: Path, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._note(value, key, path)
        elif isinstance(value, Tensor):
            self._tensor(value, key, path)
        elif isinstance(value, nn.Module):
            self._note(id(value), key, path)
            if not self._of_variables:
                self.module(value, (key, path))
        elif kind is np.ndarray:
            self._state(lambda: _checksum(value), key, path)
        elif kind in _WITHOUT_STATE:
            self._note(id(value), key, path)
        elif kind is _CACHED:
            self._note(id(value), key, path)
            if is_own(value.__module__):
                self._state(lambda: value.cache_info().misses, key, path)
        else:
            generator = generator_of(value)
            if generator is not None:
                self.random.add(len(self.found))
                self._state(lambda: state_of(generator), key, path)
            else:
                self._holder(value, kind, key, path, depth)

    def _state(self, state: Callable[[], Any], key: Any, path: Path) -> None:
        self.held.states.append(state)
        self._note(state(), key, path)

    def _holder(self, value: Any, kind: type, key: Any, path: Path, depth: int) -> None:
        """Something that may hold others."""
        # Of two equal lists, one may take the place of the other. Methods are made on the spot.
        alike = isinstance(value, (*_CONTAINERS, MethodType)) or _is_iterator(value, kind)
        self._note(kind if alike else id(value), key, path)
        if depth >= _DEEPEST or self._is_seen(value):
            return
        inside = value if isinstance(value, _CONTAINERS) else self._inside(value, kind)
        if inside is None:
            return
        self._seen.add(id(value))
        self.held.add(inside, most=_MOST)
        self._note(len(inside), key, path)
        if len(inside) <= _MOST:
            self._items(inside, (key, path), depth + 1)
        else:
            some = [one if type(one) in _PLAIN else id(one) for one in SomeItems(inside)]
            self._note(some, key, path)

    def _inside(self, value: Any, kind: type) -> Any:
        """What something that is no container holds, as one; None if it is not looked into."""
        if isinstance(value, FunctionType):
            return _of_function(value)
        if isinstance(value, MethodType):
            return value.__self__, value.__func__
        if isinstance(value, partial):
            return value.func, value.args, value.keywords
        if isinstance(value, queue.Queue):
            return value.queue
        if isinstance(value, queue.SimpleQueue) or _is_iterator(value, kind):
            self.held.watchful = True
            return _of_iterator(value)
        if _is_opaque(value, kind) or (self._of_variables and _is_foreign(value, kind)):
            return None
        slots = in_slots(value)
        if slots:
            self.held.watchful = True
            return {**getattr(value, "__dict__", {}), **slots}
        return getattr(value, "__dict__", None)

    def _items(self, value: Any, path: Path, depth: int) -> None:
        if isinstance(value, Mapping):
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
        known = self._is_seen(value)
        if value.requires_grad and (known or not self._of_variables):
            self._note((mark[0], mark[2]), key, path)
        else:
            self._note(mark, key, path)
        if known:
            return
        if self._of_variables:
            self.held.tensors.append(value)
            return
        self._seen.add(id(value))
        if value.requires_grad:
            self.trained.append((value, (key, path)))
        else:
            self.held.tensors.append(value)
            self.still.append((value, (key, path)))
            self.marks.append(mark)
        self.held.add(value.__dict__)
        self._items(value.__dict__, (key, path), _DEEPEST - 1)

    def _is_seen(self, value: Any) -> bool:
        return id(value) in self._seen or id(value) in self._known

    def _note(self, value: Any, key: Any, path: Path) -> None:
        self.found.append(value)
        if self.paths is not None:
            self.paths.append((key, path))


_CACHED = type(cache(len))
_WITHOUT_STATE = frozenset({type(len), type, CodeType, property, staticmethod, classmethod})


def _checksum(array: Any) -> tuple[Any, ...]:
    if array.dtype.hasobject:
        return id(array), array.shape
    some = array
    if array.nbytes > _BYTES:
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        size, step = 2**14, array.size // 2**18
        some = np.concatenate([flat[:size], flat[::step], flat[-size:]])
    return array.shape, array.dtype.str, zlib.crc32(np.ascontiguousarray(some).view(np.uint8).data)


def _of_function(function: FunctionType) -> Any:
    """What a function of the user's keeps; None for another's."""
    source: str | None = function.__module__
    if source is not None and not is_own(source):
        return None
    parts = (Cells(function), function.__defaults__, function.__kwdefaults__)
    return vars(function), *(part for part in parts if part)


def _of_iterator(value: Any) -> Any:
    """Where an iterator of Python's own is, and what it goes through; None if it does not say."""
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return ("ended",) if frame is None else (frame.f_lasti, dict(frame.f_locals))
    if isinstance(value, queue.SimpleQueue):
        held = gc.get_referents(value)
        return [one for one in held if not isinstance(one, type)]
    if isinstance(value, count):
        return (repr(value),)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # itertools' are to lose it
            return tuple(value.__reduce__())[1:]
    except (TypeError, AttributeError):
        return None


def _made_by_hooks(module: nn.Module) -> tuple[str, ...]:
    """The attributes that torch's older weight_norm and spectral_norm set in each forward pass."""
    hooks = module._forward_pre_hooks.values()
    return tuple(hook.name for hook in hooks if isinstance(hook, WeightNorm | SpectralNorm))


def _is_opaque(value: Any, kind: type) -> bool:
    """Whether an object's attributes are none of our business: a class, a logger, a lock."""
    if isinstance(value, type):
        return True
    package = kind.__module__.partition(".")[0]
    return kind is not SimpleNamespace and (
        package in _PYTHON or package in ("torch", "numpy", "plumbline")
    )


_PYTHON = sys.stdlib_module_names - {"__main__"}


def _is_foreign(value: Any, kind: type) -> bool:
    """Whether a variable's value is not of the user's own classes, or is a data set."""
    if kind is SimpleNamespace:
        return False
    return not is_own(kind.__module__) or is_data_set(kind)


def is_data_set(kind: type) -> bool:
    """Whether a class has records that can be asked for by number."""
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__")


def _is_iterator(value: Any, kind: type) -> bool:
    """Whether this is one of Python's own iterators: they have no attributes."""
    return kind.__module__ in ("builtins", "itertools") and isinstance(value, Iterator)
