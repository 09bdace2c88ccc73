"""Random generators that the user's code holds itself: found once, and compared by their state.

The global generators of torch, NumPy and Python are set for every record (``record_random``), and
are not among them. A generator of somebody's own goes on from record to record instead: what one
record is shown would depend on how many came before it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

KINDS = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)

_WITHOUT_STATE = (random.SystemRandom,)
_DEEPEST, _MOST, _ALL = 8, 1000, 20_000


def generator_of(value: Any) -> Any:
    """The generator that this is, or is a method of (``draw = rng.random``); None if there is none.

    The global ones do not count.
    """
    if not isinstance(value, KINDS):
        if isinstance(value, type | Tensor):
            return None
        value = getattr(value, "__self__", None) if callable(value) else None
        if not isinstance(value, KINDS):
            return None
    shared = (torch.default_generator, random._inst, np.random.mtrand._rand)
    is_shared = isinstance(value, _WITHOUT_STATE) or any(value is one for one in shared)
    return None if is_shared else value


def state_of(generator: Any) -> Any:
    """The state of a generator, to be compared."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return str(generator.get_state(legacy=False))
    if isinstance(generator, np.random.Generator):
        generator = generator.bit_generator
    return str(generator.state)


def held_by(*holders: Any) -> list[Any]:
    """The generators that can be reached from these objects, each once.

    By attributes, items, closures, and the variables that their functions name. At most 20,000
    objects are looked at, and 1,000 items of a container.
    """
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    waiting = deque((one, 0) for one in holders)
    while waiting and len(seen) < _ALL:
        value, depth = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        generator = generator_of(value)
        if generator is not None:
            found[id(generator)] = generator
        elif depth < _DEEPEST:
            waiting.extend((one, depth + 1) for one in _inside(value))
    return list(found.values())


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, str | bytes | int | float | Tensor | np.ndarray | ModuleType):
        return ()
    if isinstance(value, Mapping):
        return islice(value.values(), _MOST) if type(value) is dict else ()
    if isinstance(value, list | tuple | deque | set | frozenset):
        return islice(value, _MOST)
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, type):
        return islice(vars(value).values(), _MOST) if _has_python_code(value) else ()
    return (*getattr(value, "__dict__", {}).values(), *in_slots(value).values(), type(value))


def _of_function(function: FunctionType) -> Iterator[Any]:
    yield from vars(function).values()
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not set yet
            yield cell.cell_contents
    names = function.__globals__
    yield from (names[name] for name in function.__code__.co_names if name in names)


def _has_python_code(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in ("builtins", "torch", "numpy", "plumbline")


def in_slots(value: Any) -> dict[str, Any]:
    """What an object holds in ``__slots__``."""
    held = {}
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if isinstance(name, str) and not name.startswith("__") and hasattr(value, name):
                held[name] = getattr(value, name)
    return held
