"""The two products of a recurrent layer's gates, at each record's own weights.

Those of the inputs are computed for all steps at once; those of the hidden state step by step, and
their derivative with them.
"""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.layers.recurrent_scan import Moves
from plumbline.gradients.outer import Outer
from plumbline.gradients.rounding import RowSquares
from plumbline.gradients.tape import Tape, Weight
from plumbline.gradients.terms import Dense, Term


class Projection:
    """``x W^T + b`` at each record's own weights, for ``[B, T, d]`` and ``[B, d]`` alike.

    Attributes:
        size: The number of outputs.
        is_watched: Whether ``note`` gets the gradient of the output. Otherwise everything is
            frozen, or autograd differentiates each record's own weights.
        is_plain: Whether ``add_to`` and ``pulled`` do all there is to do: no weight is left to
            autograd, but for its check of shared ones.
    """

    def __init__(self, tape: Tape, weight: Tensor, *biases: Tensor | None) -> None:
        self.size = weight.shape[0]
        self._tape = tape
        known = tape.weight(weight)
        self._value = weight if known is None else known.value
        self._turned = self._value.T
        self._weight = None if _is_differentiated(known) else known
        self._offset = known.offset if known is not None and self._weight is not None else None
        self._known = known
        self._has_own = _is_differentiated(known) or (
            self._offset is not None and not self._offset.low_rank
        )

        self._biases: list[Weight] = []
        self._bias: Tensor | None = None
        self._own_bias: Tensor | None = None
        for bias in biases:
            known = tape.weight(bias)
            if known is not None and not _is_differentiated(known):
                self._biases.append(known)
            if (own := _own_weight(known)) is not None:
                self._own_bias = own if self._own_bias is None else self._own_bias + own
            elif bias is not None:
                value = bias if known is None else known.value
                self._bias = value if self._bias is None else self._bias + value
        self.is_watched = self._weight is not None or bool(self._biases)
        differentiated = any(_is_differentiated(tape.weight(one)) for one in (weight, *biases))
        moved = self._has_own or self._own_bias is not None or self._offset is not None
        self.is_plain = not differentiated and not (moved and tape.checked)

    @cached_property
    def _own(self) -> Tensor:
        own = _own_weight(self._known)
        assert own is not None
        return own

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs of inputs ``[B, ..., d]``."""
        if not self._has_own and self._own_bias is None and self._offset is None:
            return F.linear(inputs, self._value, self._bias)
        rows = self._by_record(inputs)
        if self._has_own:
            output = torch.bmm(rows, self._own.transpose(1, 2).to(rows.dtype))
            output = output if self._bias is None else output + self._bias
        else:
            output = F.linear(rows, self._value, self._bias)
            if self._offset is not None:
                output = self._offset.applied(output, rows)
        if self._own_bias is not None:
            output = output + self._own_bias[:, None].to(output.dtype)
        shape = (*inputs.shape[:-1], self.size)
        return output if output.shape == shape else output.view(shape)

    @property
    def values(self) -> tuple[Tensor, Tensor | None]:
        """The shared weight and bias."""
        return self._value, self._bias

    @property
    def moves(self) -> Moves | None:
        """Each record's own weights; None if all have the same."""
        if self._offset is None:
            return None
        records, value = self._tape.records, self._value.detach()
        scale = self._offset.scale.to(value.dtype)
        if self._has_own or self._offset.factors is None:
            left, right = (value.new_empty(records, 0, size) for size in value.shape)
            return Moves(value, self._offset.values(), left, right, scale)
        none = value.new_empty(0, *value.shape)
        return Moves(value, none, *self._offset.factors, scale)

    def add_to(self, base: Tensor, inputs: Tensor) -> Tensor:
        """``base [B, out]``, to which the outputs of inputs ``[B, d]`` were added in place."""
        if self._offset is None and self._own_bias is None:
            base.addmm_(inputs, self._turned)
            return base if self._bias is None else base.add_(self._bias)
        return base.add_(self(inputs))

    def pulled(self, back: Tensor) -> Tensor:
        """The gradient of the inputs ``[B, d]`` from that of the outputs, ``[B, out]``."""
        if self._has_own:
            return torch.bmm(self._by_record(back), self._own).flatten(0, 1)
        found = back @ self._value
        if self._offset is not None:
            turned = self._offset.over(_transposed)
            found = turned.applied(self._by_record(found), self._by_record(back)).flatten(0, 1)
        return found

    def added_to(self, base: Tensor, inputs: Tensor) -> Tensor:
        """``base`` plus the outputs of inputs ``[B, d]``."""
        biased = self._bias is not None or self._own_bias is not None
        if biased or self._has_own or self._offset is not None:
            return base + self(inputs)
        return torch.addmm(base, inputs, self._turned)

    def note(self, back: Tensor, inputs: Tensor) -> None:
        """The terms of the gradient ``back [B, T, out]`` of the outputs of ``inputs``."""
        if not self.is_watched:
            return
        rows = self._by_record(back).to(self._value.dtype)
        squares = RowSquares(rows)
        if self._weight is not None:
            met = self._by_record(inputs).to(self._value.dtype)
            self._weight.add(Outer(rows, met, left_squares=squares))
        if self._biases:
            summed = Dense.summed(rows, (1,), squares)  # the same for both
            for bias in self._biases:
                bias.add(summed)

    def _by_record(self, tensor: Tensor) -> Tensor:
        """``[B, N * T, d]`` from ``[B * N, T, d]``, or ``[B, N, d]`` from ``[B * N, d]``."""
        return tensor.reshape(self._tape.records, -1, tensor.shape[-1])


def _transposed(term: Term) -> Term:
    assert isinstance(term, Outer)  # the only low-rank one
    return Outer(term.right, term.left)


def _is_differentiated(weight: Weight | None) -> bool:
    """Whether autograd itself gives the gradient of each record's own weight."""
    return weight is not None and (weight.tape.dense or weight.own is not None)


def _own_weight(weight: Weight | None) -> Tensor | None:
    """Each record's own weight, ``[B, *shape]``, where it differs from the shared one."""
    if weight is None:
        return None
    if _is_differentiated(weight):
        return weight.per_record()
    return None if weight.offset is None else weight.offset.moved(weight.value)
