"""``expand`` and ``repeat`` of a parameter along the batch: class tokens and the like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.tape import Tape, Where


@handles(Tensor.expand, rewrites=True)
def expand(tape: Tape, tensor: Tensor, *sizes: Any, **named: Any) -> Tensor | None:
    """A parameter expanded to one copy per record is each record's own parameter."""
    return _copies(tape, tensor, _sizes(sizes, named), Tensor.expand)


@handles(torch.broadcast_to, Tensor.broadcast_to, rewrites=True)
def broadcast_to(tape: Tape, tensor: Tensor, *sizes: Any, **named: Any) -> Tensor | None:
    """As ``expand``."""
    return _copies(tape, tensor, _sizes(sizes, named), Tensor.expand)


@handles(Tensor.expand_as, rewrites=True)
def expand_as(tape: Tape, tensor: Tensor, other: Tensor) -> Tensor | None:
    """As ``expand``, to another tensor's shape."""
    if tape.weight(other) is not None:
        return None
    return _copies(tape, tensor, tuple(other.shape), Tensor.expand)


@handles(Tensor.repeat, torch.tile, Tensor.tile, rewrites=True)
def repeat(tape: Tape, tensor: Tensor, *sizes: Any, **named: Any) -> Tensor | None:
    """A parameter repeated once per record is each record's own parameter."""
    return _copies(tape, tensor, _sizes(sizes, named), Tensor.repeat)


@handles(torch.repeat_interleave, Tensor.repeat_interleave, rewrites=True)
def repeat_interleave(
    tape: Tape, tensor: Tensor, repeats: Any, dim: int | None = None, **named: Any
) -> Tensor | None:
    """As ``repeat``, of a dimension of length one."""
    if not isinstance(repeats, int) or dim is None or tensor.shape[dim] != 1:
        return None
    sizes = [1] * tensor.dim()
    sizes[dim] = repeats
    return _copies(tape, tensor, tuple(sizes), Tensor.repeat)


def _copies(tape: Tape, tensor: Tensor, sizes: tuple[int, ...], copy: Any) -> Tensor | None:
    weight = tape.weight(tensor)
    extra = len(sizes) - tensor.dim()
    if weight is None or extra < 0:
        return None
    once = (1,) * extra + tuple(tensor.shape)  # the parameter as a batch of one
    axes: tuple[tuple[Where, int], ...] = (("first", 0), ("second", 1))
    copies = {where: sizes[at] for where, at in axes if at < len(sizes) and once[at] == 1}
    where = tape.copied(weight, copies)
    if where == "none":
        return None
    axis = 0 if where == "first" else 1
    own = weight.per_record()
    own = own.reshape(len(own), *once).transpose(0, axis + 1).squeeze(0)
    kept = -1 if copy is Tensor.expand else 1
    return copy(own, (*sizes[:axis], kept, *sizes[axis + 1 :]))  # type: ignore[no-any-return]


def _sizes(sizes: tuple[Any, ...], named: dict[str, Any]) -> tuple[int, ...]:
    sizes = (*sizes, *named.values())
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
