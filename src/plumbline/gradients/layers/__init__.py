"""One file per kind of layer, found through a registry of the torch functions they handle.

A layer file decorates a function with ``@handles(F.linear)``: it is called instead of that torch
function whenever one of its arguments is a tracked parameter. It gets ordinary tensors with the
records in the first dimension, before the dimensions that the model sees (``[B, 1, C, H, W]`` for
an image in a batch of one). It runs the operation (at each record's own weights if the capture is
perturbed) and tells the tape how to turn the gradient that flows back into terms. It may return
None to use the general rule in ``general.py``.

``in_any_capture=True`` marks a handler that works when every parameter gets per-record values too
(for Hessian products). ``rewrites=True`` marks one that only expresses its function through other
torch functions (attention): it runs inside the model, for one record; with ``in_loop=True`` also
when records run one after the other.

``@refuses(F.embedding)`` marks a function that looks at every call inside a model, whether or not a
parameter is trained there, and raises if the call lets records mix.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)

ANYTHING = object()
"""Stands for every torch function without a handler: the general rule."""

HANDLERS: dict[Any, Handler] = {}
IN_ANY_CAPTURE: set[Any] = set()
REWRITES: set[Any] = set()
IN_LOOP: set[Any] = set()
REFUSALS: dict[Any, Callable[..., None]] = {}


def handles(
    *functions: Any, in_any_capture: bool = False, rewrites: bool = False, in_loop: bool = False
) -> Callable[[F], F]:
    """Registers the decorated handler for some torch functions.

    Args:
        functions: The torch functions (``F.linear``, ``torch.conv2d`` ...).
        in_any_capture: Whether the handler also works for Hessian products.
        rewrites: Whether the handler only calls other torch functions, for one record.
        in_loop: Whether it replaces torch's function one record at a time, too.
    """

    def register(handler: F) -> F:
        for function in functions:
            HANDLERS[function] = handler
            if rewrites:
                REWRITES.add(function)
            if in_loop:
                IN_LOOP.add(function)
            if in_any_capture or rewrites:
                IN_ANY_CAPTURE.add(function)
        return handler

    return register


def refuses(*functions: Any) -> Callable[[F], F]:
    """Registers a function that gets the arguments of every call of some torch functions.

    It raises if the call lets records mix, and returns nothing otherwise.
    """

    def register(refusal: F) -> F:
        REFUSALS.update(dict.fromkeys(functions, refusal))
        return refusal

    return register


def register_all() -> None:
    """Imports every file in this folder, which registers its handlers."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
