"""One record after the other: for models that ``torch.vmap`` cannot run.

Slow, and by construction too: the model sees a batch of one record, and plain autograd
differentiates its loss. Each record's run starts with random numbers of the record's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from plumbline.gradients.errors import CUT_OFF, LossError, UnsupportedModelError
from plumbline.gradients.lowering import by_record
from plumbline.gradients.model_parts import ModelParts
from plumbline.gradients.record_mode import LoopMode
from plumbline.gradients.substitution import substituted
from plumbline.gradients.tape import Offset
from plumbline.record_random import Draws, own_generators


def gradients(
    parts: ModelParts,
    loss: Callable[[Any], Tensor],
    batch: Any,
    records: int,
    *,
    rows: int | None = None,
    offsets: Mapping[str, Offset] | None = None,
    shared: Mapping[str, Tensor] | None = None,
    along: Mapping[str, Tensor] | None = None,
    random: Draws | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Each record's loss ``[B]`` and gradient ``[B, *shape]`` by parameter name.

    Args:
        parts: The model's parts; its parameters are put back after every record.
        loss: One record's loss, a number, from the record.
        batch: Tensors with the rows of all records, in any nesting.
        records: The number of records, B.
        rows: How many adjacent rows of the batch are one record.
        offsets: Moves each record's own weights.
        shared: Moves the weights of all.
        along: If given, each record's Hessian times these vectors (``[B, *shape]``, or one
            ``[*shape]`` for all) instead of the gradient.
        random: Each record's random numbers; by default from torch's default generator.
    """
    if random is None:
        random = Draws.by_place(records)
    moved = {name: offset.dense() for name, offset in (offsets or {}).items()}
    values: list[Tensor] = []
    found: dict[str, list[Tensor]] = {name: [] for name in parts.parameters}
    for record, seed in enumerate(random.seeds().tolist()):
        own = {}
        for name, parameter in parts.parameters.items():
            value = parameter.detach().clone()
            if shared is not None and name in shared:
                value += shared[name]
            if name in moved:
                value += moved[name][record]
            own[name] = value.requires_grad_()
        with (
            own_generators("model", seed),
            substituted(parts, own),
            torch.enable_grad(),
            LoopMode(rows),
        ):
            value = loss(tree_map(lambda leaf, at=record: _rows(leaf, at, records), batch))
            if not value.requires_grad:
                raise LossError(CUT_OFF)
            vectors = None
            if along is not None:
                vectors = {k: v if v.shape == own[k].shape else v[record] for k, v in along.items()}
            gradients = _differentiated(value, own, vectors)
        values.append(value.detach())
        for name, gradient in gradients.items():
            found[name].append(gradient.detach())
    return torch.stack(values), {name: torch.stack(one) for name, one in found.items()}


def _rows(leaf: Any, record: int, records: int) -> Any:
    """A record's own rows; a copy, since a model may change its input in place."""
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return leaf
    return by_record(leaf, records)[record].clone()


def _differentiated(
    value: Tensor, own: Mapping[str, Tensor], vectors: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """The gradient of one record's loss, or the derivative of ``<gradient, vectors>``."""
    inputs, twice = list(own.values()), vectors is not None
    try:
        first: tuple[Tensor | None, ...] = torch.autograd.grad(
            value, inputs, create_graph=twice, allow_unused=True
        )
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise UnsupportedModelError(
            "The model uses reentrant gradient checkpointing, which runs a backward pass of its "
            "own. Use checkpoint(..., use_reentrant=False)."
        ) from error
    if vectors is not None:
        pairs = zip(own, first, strict=True)
        along = [
            (gradient * vectors[name]).sum()
            for name, gradient in pairs
            if name in vectors and gradient is not None and gradient.requires_grad
        ]
        first = (None,) * len(inputs)
        if along:
            first = torch.autograd.grad(torch.stack(along).sum(), inputs, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(own.items(), first, strict=True)
    }
