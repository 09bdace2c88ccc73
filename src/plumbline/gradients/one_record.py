"""Runs a function for one record, and ``torch.vmap`` makes the batch of it.

Inside, there is no row number, no neighbour and no batch statistic: whatever the function does, it
does with one record. What ``vmap`` by itself leaves open is closed here:

- random functions take numbers that belong to the record (``layers/random.py``), and ``vmap`` runs
  with ``randomness="error"``, so that none is missed;
- custom functions and operators that bring a ``vmap`` rule of their own would see the whole batch
  and are refused;
- a tensor that is still there when the function has returned was kept somewhere and is refused;
- ``repr`` and ``.data`` show nothing of the batch, and hooks on saved tensors are refused.
"""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import custom_function_call
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from plumbline.gradients.errors import CaptureError, RecordsMixError, UnsupportedModelError
from plumbline.gradients.layers import HANDLERS, REFUSALS, REWRITES
from plumbline.gradients.lowering import has_records
from plumbline.gradients.tape import Tape, quiet_vmap


def for_each_record(function: Callable[[Any], Tensor], batch: Any, tape: Tape) -> Tensor:
    """``function`` of every record, ``[B, ...]``.

    Args:
        function: From one record (the batch's nesting, with tensors ``[rows, ...]``) to a tensor.
        batch: Tensors ``[B * rows, ...]`` in any nesting, a record's rows adjacent (usually one);
            what is not a tensor, or has no dimension, is the same for every record.
        tape: The capture; it knows the number of records, and of rows of each.

    Raises:
        UnsupportedModelError: If the function cannot run under ``vmap``; names the line.
    """
    leaves, spec = tree_flatten(batch)
    places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()]
    rows = [_by_record(leaves[at], tape) for at in places]

    def one(*own: Tensor) -> Tensor:
        record = list(leaves)
        for at, value in zip(places, own, strict=True):
            record[at] = value
        result = function(tree_unflatten(record, spec))
        if not has_records(result):
            raise RecordsMixError(
                "The result is the same for every record: it does not depend on the record's data."
            )
        return result

    mode = _OneRecord(tape)
    with (
        _explained(),
        quiet_vmap(),
        disable_saved_tensors_hooks(_CHECKPOINTED),
        mode,
    ):
        result = torch.vmap(one, randomness="error")(*rows)
    mode.refuse_kept()
    return result


_CHECKPOINTED = (
    "The model uses gradient checkpointing (or other hooks on saved tensors), which runs a part of "
    "it again outside of the record's own run. Switch it off and set max_physical_batch, which "
    'saves more memory; or use isolation="loop".'
)


def batch_rows(batch: Any) -> int:
    """The number of rows of a batch: the first dimension of all of its tensors."""
    lengths = [
        len(leaf) for leaf in tree_flatten(batch)[0] if isinstance(leaf, Tensor) and leaf.dim()
    ]
    if not lengths:
        raise CaptureError(
            f"The batch, of type {type(batch).__name__}, has no tensors with one row per record. "
            "Give tensors in a tuple, a list or a dict."
        )
    if len(set(lengths)) > 1:
        raise CaptureError(
            f"The batch's tensors have {', '.join(map(str, sorted(set(lengths))))} rows. Each needs "
            "one row per record, in its first dimension; what all records share is given to the "
            "model in another way."
        )
    return lengths[0]


def _by_record(leaf: Tensor, tape: Tape) -> Tensor:
    return leaf.reshape(tape.records, tape.rows, *leaf.shape[1:])


class _OneRecord(TorchFunctionMode):
    """Sees every torch function that runs for one record."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self._made: list[weakref.ref[Tensor]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs a function by its rule, if it has one."""
        kwargs = kwargs or {}
        result = None
        if func in REFUSALS:
            REFUSALS[func](self._tape, *args, **kwargs)
        if func in REWRITES:
            result = HANDLERS[func](self._tape, *args, **kwargs)
        elif (rule := _RULES.get(func)) is not None:
            result = rule(*args, **kwargs)
        elif not isinstance(func, _ORDINARY):
            _refuse_own_rule(func, args)
        if result is None:
            result = func(*args, **kwargs)
        if isinstance(result, Tensor) and has_records(result):
            self._made.append(weakref.ref(result))
        return result

    def refuse_kept(self) -> None:
        """Refuses a function that kept one of the record's tensors."""
        made, self._made = self._made, []
        if all(one() is None for one in made):
            return
        gc.collect()  # what is alive may only be a reference cycle
        kept = next((tensor for one in made if (tensor := one()) is not None), None)
        if kept is not None:
            raise RecordsMixError(
                "The model or the loss keeps a tensor of a record after it has run "
                f"({_holder(kept)}). The next batch would see it. Keep nothing between calls."
            )


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


_ORDINARY = (type(torch.add), type(Tensor.add), type(Tensor.__add__), type(Tensor.unflatten))
"""Built-in functions, methods, operators, and torch's own Python functions."""


def _refuse_own_rule(func: Any, args: Sequence[Any]) -> None:
    """Refuses a custom function or operator whose rule for ``vmap`` sees the whole batch."""
    name = ""
    if func is custom_function_call:
        function = args[0]
        if not function.generate_vmap_rule:
            name = f"The autograd function {function.__name__}"
    elif isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        overloads = (
            [func]
            if isinstance(func, torch._ops.OpOverload)
            else [getattr(func, overload) for overload in func.overloads()]
        )
        if any(_has_own_rule(one) for one in overloads):
            name = f"The operator {func}"
    if name:
        raise UnsupportedModelError(
            f"{name} is run for one record at a time by torch.vmap, and brings no rule for that or "
            "a rule of its own, which would see all records at once. Let torch generate the rule "
            "(generate_vmap_rule = True, with setup_context), write it with ordinary functions, or "
            'use isolation="loop".'
        )


def _has_own_rule(operator: Any) -> bool:
    if operator.namespace in ("aten", "prims", "prim"):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "FuncTorchBatched"))


def _hidden(tensor: Tensor, *args: Any, **kwargs: Any) -> str | None:
    return f"a record's tensor of shape {tuple(tensor.shape)}" if has_records(tensor) else None


def _detached(tensor: Tensor) -> Tensor | None:
    return tensor.detach() if has_records(tensor) else None


_RULES: dict[Any, Callable[..., Any]] = {
    Tensor.__repr__: _hidden,
    Tensor.__format__: _hidden,
    Tensor.data.__get__: _detached,  # type: ignore[attr-defined]
}


@contextmanager
def _explained() -> Iterator[None]:
    """Says what to do when something does not work under ``vmap``, and names the line."""
    try:
        yield
    except CaptureError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        message = str(error)
        if message == _CHECKPOINTED:
            raise UnsupportedModelError(message) from error
        if not any(sign in message for sign in _SIGNS):
            raise
        raise UnsupportedModelError(
            f"{_line(error)} cannot run for one record under torch.vmap, which keeps records apart "
            f"by construction: {message.splitlines()[0].strip()} Write it without control flow, "
            "sizes or Python numbers that depend on the data (torch.where instead of if), or use "
            'isolation="loop", which runs one record at a time and is slower.'
        ) from error


_SIGNS = (
    "vmap",
    "Batching rule",
    "BatchedTensor",
    "functorch",
    "Cannot access data pointer of Tensor",
    "dynamic shape",
)
_TORCH, _OURS = Path(torch.__file__).parent, Path(__file__).parent


def _line(error: BaseException) -> str:
    """The last line of the user's own code that an error came through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if _TORCH not in file.parents and _OURS not in file.parents:
            return f"The line {file.name}:{frame.lineno} ({(frame.line or '').strip()})"
    return "A part of the model"
