"""What earlier captures of a model showed: its layouts, its batch dimension, its checks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from plumbline.gradients.model_parts import ModelParts
from plumbline.gradients.tape import Memory, Tape


class EmptyBatch(Exception):
    """The batch has no records."""


@dataclass
class History:
    """One model's history.

    Attributes:
        memory: The layouts seen in captures that agreed with autograd.
        batch_dim: Which dimension of the model's first input counts the records.
    """

    memory: Memory = field(default_factory=Memory)
    batch_dim: int = 0
    _confirmed: set[object] = field(default_factory=set)
    _input_shape: tuple[int, ...] = ()
    _lengths: set[int] = field(default_factory=set)

    def unconfirmed(self, parts: ModelParts) -> bool:
        """Whether no capture with these trainable parameters and modes has been checked yet."""
        return parts.signature not in self._confirmed

    def confirm(self, parts: ModelParts, tape: Tape) -> None:
        """Remembers that a capture agreed with autograd."""
        self._confirmed.add(parts.signature)
        tape.remember()

    @contextmanager
    def counting(self, model: nn.Module, tape: Tape) -> Iterator[None]:
        """Gives the tape the number of records when the model is called, unless it is known."""
        if tape.expected is not None:
            yield
            return

        def count(module: nn.Module, args: Any, kwargs: Any) -> None:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            shape = next((tuple(tensor.shape) for tensor in tensors if tensor.dim()), ())
            if not shape:
                return
            self._input_shape = shape
            self._lengths = {length for tensor in tensors for length in tensor.shape[:2]}
            records = shape[self.batch_dim] if self.batch_dim < len(shape) else shape[0]
            tape.expect(records)
            if records == 0:
                raise EmptyBatch

        handle = model.register_forward_pre_hook(count, with_kwargs=True, prepend=True)
        try:
            yield
        finally:
            handle.remove()

    def plausible(self, records: int) -> bool:
        """Whether a dimension of the last inputs can count ``records`` (or views of them)."""
        return records > 0 and any(length % records == 0 for length in self._lengths if length)

    def learn(self, records: int) -> None:
        """Remembers which dimension of the last input had ``records`` entries."""
        if records in self._input_shape:
            self.batch_dim = self._input_shape.index(records)


def history_of(model: nn.Module) -> History:
    """The model's history; it is deleted with the model."""
    return _HISTORIES.setdefault(model, History())


_HISTORIES: weakref.WeakKeyDictionary[nn.Module, History] = weakref.WeakKeyDictionary()
