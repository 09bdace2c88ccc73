"""The tensor that stands in for a parameter during a capture.

Torch passes every function that meets a ``Tracked`` tensor to ``__torch_function__``. So no module
is patched or hooked, functional use (``F.linear(x, self.embedding.weight)``) is seen like a module,
and anything computed from parameters only (a standardised weight) is tracked in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from plumbline.gradients.layers import ANYTHING, HANDLERS, IN_ANY_CAPTURE, REWRITES
from plumbline.gradients.lowering import is_lowered, lowered
from plumbline.gradients.tape import Tape, Weight

_TURNS = {"T", "mT", "H", "mH"}
_ABOUT = {
    "size", "dim", "numel", "nelement", "stride", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "data_ptr", "get_device", "storage_offset", "ndimension",
    "__len__", "__hash__", "__repr__", "__format__", "is_same_size", "untyped_storage",
}  # fmt: skip


class Tracked(torch.Tensor):
    """A parameter, or a function of parameters, whose meetings with records are noted."""

    _weight: Weight

    @staticmethod
    def of(weight: Weight) -> Tracked:
        """The tensor that stands for ``weight``."""
        tracked: Tracked = torch.Tensor._make_subclass(Tracked, weight.value, True)
        tracked._weight = weight
        return tracked

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Passes a function that meets tracked tensors to its layer file, or the general rule."""
        kwargs = kwargs or {}
        name = "" if func in HANDLERS else getattr(func, "__name__", "")
        if name == "__get__":
            return _property(func, args)
        if name in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name == "detach":
            return args[0]._weight.value.detach()
        weight = any_weight(args) or any_weight(kwargs.values())
        if weight is None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return dispatched(weight.tape, func, args, kwargs)


def dispatched(tape: Tape, func: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """``func`` by its layer file, or by the general rule, on tensors with the records first."""
    handler = HANDLERS.get(func)
    if handler is not None and tape.dense and func not in IN_ANY_CAPTURE:
        handler = None
    if handler is not None and func in REWRITES:
        result = handler(tape, *args, **kwargs)
        if result is not None:
            return result
        handler = None

    def on_batch(call: Container[object], args: Any, kwargs: Any) -> Any:
        tape.call = call
        try:
            result = None if handler is None else handler(tape, *args, **kwargs)
            return HANDLERS[ANYTHING](tape, func, args, kwargs) if result is None else result
        finally:
            tape.call = ()

    if is_lowered():  # a handler's own computation with parameters only
        return on_batch((), args, kwargs)
    return lowered(on_batch, args, kwargs, keep=Tracked)


def _property(func: Callable[..., Any], args: Sequence[Any]) -> Any:
    tensor = args[0]
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    if attribute in _TURNS:
        turn = {"T": Tensor.t, "mT": Tensor.mT.__get__}.get(attribute)  # type: ignore[attr-defined]
        return dispatched(tensor._weight.tape, turn or func, args, {})
    with torch._C.DisableTorchFunctionSubclass():
        if attribute == "data":
            return tensor._weight.value.detach()
        return func(*args)


def any_weight(values: Iterable[Any]) -> Weight | None:
    """A weight behind one of the values, if there is any."""
    for value in values:
        if isinstance(value, Tracked):
            return value._weight
        if isinstance(value, list | tuple) and (weight := any_weight(value)) is not None:
            return weight
    return None
