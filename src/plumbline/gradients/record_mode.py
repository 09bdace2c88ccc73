"""Sees every torch function that runs for one record, and closes what ``vmap`` leaves open.

- Random functions take numbers that belong to the record (``layers/random.py``), and ``vmap`` runs
  with ``randomness="error"``, so that none is missed.
- Custom functions and operators that bring a ``vmap`` rule of their own would see the whole batch:
  they are refused.
- A tensor of a record that is still there after the run was kept somewhere, and is refused.
- ``repr``, ``.data`` and ``.grad_fn`` show nothing of the batch; hooks on tensors, which would see
  all records' gradients, and ``torch.func.debug_unwrap`` are refused.

The mode is on in the backward pass too, for the backward code of custom functions.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from types import FrameType, FunctionType
from typing import Any, Self, TypeGuard, TypeVar

from torch import Tensor
from torch._C import _functorch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch import eager_transforms
from torch._functorch.autograd_function import custom_function_call
from torch._ops import OpOverload, OpOverloadPacket
from torch._ops import _compute_keyset as _untyped_key_set
from torch.overrides import TorchFunctionMode

from plumbline.gradients.errors import RecordsMixError, UnsupportedModelError
from plumbline.gradients.layers import HANDLERS, IN_LOOP, REFUSALS, REWRITES
from plumbline.gradients.lowering import has_records, is_lowered
from plumbline.gradients.new_objects import NewObjects
from plumbline.gradients.tape import Tape
from plumbline.gradients.tracked import Tracked, any_weight, dispatched

T = TypeVar("T")
key_set: Callable[..., Any] = _untyped_key_set


class LoopMode(TorchFunctionMode):
    """For records that run one after the other: refuses functions that let them mix."""

    def __init__(self, rows: int | None) -> None:
        super().__init__()
        self._tape = Tape(1, rows=rows)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs a function that is not refused."""
        kwargs = kwargs or {}
        if func in REFUSALS:
            REFUSALS[func](self._tape, *args, **kwargs)
        if func in IN_LOOP:
            return HANDLERS[func](self._tape, *args, **kwargs)
        return func(*args, **kwargs)


class RecordMode(TorchFunctionMode):
    """Runs the functions of one record by their rules, and notes the tensors they make."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self._made: list[weakref.ref[Tensor]] = []
        self._custom = False  # whether a custom function has run, whose tensors are not all noted
        self._new: NewObjects | None = None
        self._entered = 0

    def __enter__(self) -> Self:
        self._entered += 1
        if self._custom and self._new is None:
            self._new = NewObjects()
        for module in _UNWRAPPING:
            module.get_unwrapped = _refuse_unwrapping
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._entered -= 1
        if not self._entered:
            for module in _UNWRAPPING:
                module.get_unwrapped = get_unwrapped
            if self._new is not None:
                new, self._new = self._new.end(), None
                self._made += [weakref.ref(one) for one in new if _is_records(one)]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs a function by its rule, if it has one."""
        kwargs = kwargs or {}
        if func is custom_function_call:
            return self._custom_function(*args, **kwargs)
        if is_lowered():  # the engine's own computation
            return func(*args, **kwargs)
        if func in REFUSALS:
            REFUSALS[func](self._tape, *args, **kwargs)
        if (rule := _RULES.get(func)) is not None and is_functorch_wrapped_tensor(args[0]):
            return self.noted(rule(*args, **kwargs))
        result = None
        if func in REWRITES:
            result = HANDLERS[func](self._tape, *args, **kwargs)
        elif func in HANDLERS and any_weight(args) is not None:
            result = dispatched(self._tape, func, args, kwargs)
        if result is None:
            _refuse_opaque(func, (*args, *kwargs.values()))
            result = func(*args, **kwargs)
        return self.noted(result)

    def noted(self, result: T) -> T:
        """The result, whose tensors must be gone after the run if they are a record's."""
        if isinstance(result, Tensor):
            if is_functorch_wrapped_tensor(result):
                self._made.append(weakref.ref(result))
        elif isinstance(result, list | tuple):
            for part in result:
                self.noted(part)
        return result

    def refuse_kept(self) -> None:
        """Refuses a function that kept one of the record's tensors."""
        made, self._made = self._made, []
        if all(one() is None for one in made):
            return
        gc.collect()  # what is alive may only be a reference cycle
        for tensor in (one() for one in made):
            if tensor is not None:
                raise RecordsMixError(
                    "The model or the loss keeps a tensor of a record after it has run "
                    f"({_holder(tensor)}). The next batch would see it. Keep nothing between calls."
                )

    def _custom_function(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A custom autograd function, with the mode on while its own code runs."""
        self._custom = True
        if not function.generate_vmap_rule:
            raise _own_rule(f"The autograd function {function.__name__}")
        given = (function, *args)
        with self:
            if any(isinstance(one, Tracked) for one in args):
                return Tracked.__torch_function__(custom_function_call, (Tracked,), given, kwargs)
            operator: Any = custom_function_call
            keys = key_set(given, kwargs, operator.non_fallthrough_keys)
            result = operator.dispatch(keys.highestPriorityTypeId(), *given, **kwargs)
        return self.noted(result)


def _is_records(value: Any) -> TypeGuard[Tensor]:
    """Whether an object of any kind is a tensor of a record."""
    return issubclass(type(value), Tensor) and has_records(value)


def _holder(tensor: Tensor) -> str:
    """Who holds a tensor, in words."""
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, FrameType):
            continue
        if isinstance(holder, dict):
            key = next((key for key, value in holder.items() if value is tensor), None)
            owners = [
                one for one in gc.get_referrers(holder) if getattr(one, "__dict__", 0) is holder
            ]
            if isinstance(key, str) and owners:
                return f"as '{key}' of {type(owners[0]).__name__}"
        if isinstance(holder, list | tuple | dict | set):
            return f"in a {type(holder).__name__}"
    return "somewhere outside"


def _refuse_opaque(func: Any, args: Sequence[Any]) -> None:
    """Refuses a function whose code, or whose rule for ``vmap``, would see the whole batch."""
    if func in _HOOKS:
        raise UnsupportedModelError(
            "The model puts a hook on a tensor (register_hook, retain_grad), which would see the "
            'gradients of all records. Leave it out, or use isolation="loop".'
        )
    if isinstance(func, FunctionType):
        if not func.__module__.startswith("torch"):
            raise UnsupportedModelError(
                f"The function {func.__qualname__} calls torch.overrides.handle_torch_function, "
                "which hides what it does. Call its code directly, or use "
                'isolation="loop".'
            )
    elif (
        isinstance(func, OpOverload | OpOverloadPacket)
        and str(func).split(".")[0] not in ("aten", "prims", "prim")
        and any(isinstance(one, Tensor) and has_records(one) for one in args)
    ):  # without a rule, its code runs row after row: what it draws would depend on the place
        raise _own_rule(f"The operator {func}")


def _refuse_unwrapping(tensor: Tensor) -> Tensor:
    raise UnsupportedModelError(
        "The model unwraps a record's tensor (torch.func.debug_unwrap), which would show it all "
        "records of the batch. Leave it out."
    )


def _own_rule(name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name} is run for one record at a time by torch.vmap, and brings no rule for that or "
        "a rule of its own, which would see all records at once. Let torch generate the rule "
        "(generate_vmap_rule = True, with setup_context), write it with ordinary functions, or "
        'use isolation="loop".'
    )


def _hidden(tensor: Tensor, *args: Any, **kwargs: Any) -> str:
    return f"a record's tensor of shape {tuple(tensor.shape)}"


_UNWRAPPING: tuple[Any, ...] = (_functorch, eager_transforms)
_HOOKS = {Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad}
_RULES: dict[Any, Callable[..., Any]] = {
    Tensor.__repr__: _hidden,
    Tensor.__format__: _hidden,
    Tensor.__iter__: lambda tensor: iter(tensor.unbind(0)),
    Tensor.data.__get__: Tensor.detach,  # type: ignore[attr-defined]
    Tensor.grad_fn.__get__: lambda tensor: None,  # type: ignore[union-attr]
}
