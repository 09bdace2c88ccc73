"""Stepping out of ``torch.vmap``: from one record's tensors to those of the whole batch and back.

A model is run for one record, and ``vmap`` makes the batch of it (``one_record.py``). Inside, a
tensor of the record is a wrapper around ``[B, ...]``, and nothing that the model does can reach
another row. The engine itself may: a layer file works on the ordinary tensors behind the wrappers,
with the records in the first dimension, as torch's own rules for ``vmap`` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
    pop_dynamic_layer_stack,
    push_dynamic_layer_stack,
)

from plumbline.gradients.errors import UnsupportedModelError

T = TypeVar("T")

has_records = is_batchedtensor
"""Whether a tensor inside the model belongs to the record (else it is the same for all)."""


def is_lowered() -> bool:
    """Whether the code runs on ordinary tensors, outside of every ``vmap``."""
    return maybe_current_level() is None


def by_record(rows: Tensor, records: int) -> Tensor:
    """``[B, N, ...]`` from rows ``[B * N, ...]``, a record's rows adjacent."""
    return rows.reshape(records, rows.shape[0] // records, *rows.shape[1:])


class Lowered:
    """The arguments of one call, with the records' tensors as ``[B, ...]``.

    Attributes:
        found: Those tensors.
    """

    def __init__(self, level: int) -> None:
        self._level = level
        self.found: list[Tensor] = []

    def down(self, value: Any) -> Any:
        """The value with every tensor of a record replaced by that of the batch."""
        if isinstance(value, Tensor):
            if not has_records(value):
                return value
            if maybe_get_level(value) != self._level:
                raise UnsupportedModelError(
                    "A tensor that was kept from another record's run, or that belongs to a "
                    "torch.func transformation inside the model, meets this one. Keep nothing "
                    'between calls; for torch.func inside the model use isolation="loop".'
                )
            plain, axis = get_unwrapped(value), maybe_get_bdim(value)
            plain = plain.movedim(axis, 0) if axis else plain
            self.found.append(plain)
            return plain
        if type(value) in (list, tuple):
            return type(value)([self.down(part) for part in value])
        if type(value) is dict:
            return {key: self.down(part) for key, part in value.items()}
        return value

    def up(self, value: Any, keep: type[Tensor] | None = None) -> Any:
        """The value with every tensor ``[B, ...]`` made the record's, but for those of ``keep``."""
        if isinstance(value, Tensor):
            if keep is not None and isinstance(value, keep):
                return value
            return _add_batch_dim(value, 0, self._level)
        if isinstance(value, list | tuple):
            parts = [self.up(part, keep) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value

    def __contains__(self, tensor: object) -> bool:
        for found in self.found:  # noqa: SIM110 (as in the tape's has_records)
            if tensor is found:
                return True
        return False


def lowered(
    function: Callable[[Lowered, Any, Any], T],
    args: Any,
    kwargs: Any,
    *,
    keep: type[Tensor] | None = None,
) -> Any:
    """Calls ``function(call, args, kwargs)`` outside of ``vmap``, on tensors ``[B, ...]``.

    Its tensors (but for those of type ``keep``) become the record's again, if any of the arguments
    was; None stays None.
    """
    level = maybe_current_level()
    if level != 1:
        raise UnsupportedModelError(
            "The model uses torch.func (vmap, grad, jvp ...) on its parameters, which cannot be "
            'combined with per-record gradients. Use isolation="loop", which is slower.'
        )
    call = Lowered(level)
    above = pop_dynamic_layer_stack()  # as the functorch interpreter's lower() does
    try:
        result = function(call, call.down(args), call.down(kwargs) if kwargs else kwargs)
    finally:
        push_dynamic_layer_stack(above)
    if result is None or not call.found:
        return result
    return call.up(result, keep)
