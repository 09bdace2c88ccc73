"""``expand`` and ``repeat`` of a parameter along the batch: class tokens and the like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.tape import Tape


@handles(Tensor.expand, rewrites=True)
def expand(tape: Tape, tensor: Tensor, *sizes: Any) -> Tensor | None:
    """A parameter expanded to one copy per record is each record's own parameter."""
    return _copies(tape, tensor, _sizes(sizes), Tensor.expand)


@handles(Tensor.repeat, torch.tile, Tensor.tile, rewrites=True)
def repeat(tape: Tape, tensor: Tensor, *sizes: Any) -> Tensor | None:
    """A parameter repeated once per record is each record's own parameter."""
    return _copies(tape, tensor, _sizes(sizes), Tensor.repeat)


@handles(Tensor.expand_as, rewrites=True)
def expand_as(tape: Tape, tensor: Tensor, other: Tensor) -> Tensor | None:
    """As ``expand``, to another tensor's shape."""
    if tape.weight(other) is not None:
        return None
    return expand(tape, tensor, *other.shape)


def _copies(tape: Tape, tensor: Tensor, sizes: tuple[int, ...], copy: Any) -> Tensor | None:
    weight = tape.weight(tensor)
    extra = len(sizes) - tensor.dim()
    if weight is None or extra < 0 or (extra == 0 and tensor.shape[0] != 1):
        return None
    if not tape.is_per_record(weight, copies=sizes[0]):
        return None
    own = weight.per_record()
    if extra == 0:
        own = own.squeeze(1)
    else:
        own = own.reshape(len(own), *(1,) * (extra - 1), *tensor.shape)
    return copy(own, (-1 if copy is Tensor.expand else 1, *sizes[1:]))  # type: ignore[no-any-return]


def _sizes(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
