"""What earlier captures of a model have shown: its layouts, its batch dimension, its checks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from plumbline.gradients.tape import Memory, Tape


class EmptyBatch(Exception):
    """The model was given a batch without records."""


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

    def unconfirmed(self, model: nn.Module) -> bool:
        """Whether no capture with these trainable parameters and modes has been checked yet."""
        return _signature(model) not in self._confirmed

    def confirm(self, model: nn.Module, tape: Tape) -> None:
        """Notes that a capture agreed with autograd."""
        self._confirmed.add(_signature(model))
        tape.remember()

    @contextmanager
    def counting(self, model: nn.Module, tape: Tape) -> Iterator[None]:
        """Tells the tape the number of records when the model is called."""

        def count(module: nn.Module, args: Any, kwargs: Any) -> None:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            shape = next((tuple(tensor.shape) for tensor in tensors if tensor.dim()), ())
            if not shape:
                return
            self._input_shape = shape
            records = shape[self.batch_dim] if self.batch_dim < len(shape) else shape[0]
            tape.expect(records)
            if records == 0:
                raise EmptyBatch

        handle = model.register_forward_pre_hook(count, with_kwargs=True, prepend=True)
        try:
            yield
        finally:
            handle.remove()

    def learn(self, records: int) -> None:
        """Notes which dimension of the last input had ``records`` entries."""
        if records in self._input_shape:
            self.batch_dim = self._input_shape.index(records)


def history_of(model: nn.Module) -> History:
    """The model's history; it dies with the model."""
    return _HISTORIES.setdefault(model, History())


_HISTORIES: weakref.WeakKeyDictionary[nn.Module, History] = weakref.WeakKeyDictionary()


def _signature(model: nn.Module) -> object:
    trainable = tuple(parameter.requires_grad for parameter in model.parameters())
    return trainable, tuple(module.training for module in model.modules())
