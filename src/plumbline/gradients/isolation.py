"""Records must not mix: tested by running the model, not by looking at class names.

One record of a batch is changed, with the same random numbers: no other record's loss may move, and
no buffer may change in a training forward pass (running statistics carry records to later steps).
The first module whose output for an unchanged record moves is named. The check leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from plumbline.gradients.errors import RecordsMixError

_SOME = 4
_MOVED = 1e-5


def check_isolation(
    model: nn.Module, losses: Callable[[Any], Tensor], batch: Any
) -> None:
    """Refuses a model or loss in which one record can move another's loss.

    Args:
        model: The model, in the mode in which it will be trained.
        losses: One loss per record of a batch, ``[B]``.
        batch: Real records (tensors with one row per record, in any nesting); a few are used.

    Raises:
        RecordsMixError: Naming the first module that mixes records, or the buffer that changes.
    """
    few = tree_map(_first_rows, batch)
    with _untouched(model) as buffers, torch.no_grad():
        before, outputs = _run(model, losses, few)
        _refuse_changed_buffers(model, buffers)
        after, changed = _run(model, losses, tree_map(_change_last, few))
        if before.dim() != 1 or before.shape != after.shape:
            return  # the capture itself says what is wrong with such losses
        if not _moved(before, after):
            return
        culprit = next(
            (name for name, value in outputs if _moved(value, dict(changed).get(name))), None
        )
    where = (
        f"the module '{culprit}' ({type(model.get_submodule(culprit)).__name__})"
        if culprit
        else "the loss function, or code outside the modules"
    )
    raise RecordsMixError(
        f"One record changes another record's loss: records first mix in {where}. Per-record "
        "clipping is meaningless then, and so is the guarantee. Replace BatchNorm by GroupNorm "
        "(plumbline.suggest_fixes(model) does), and compute nothing over the batch dimension."
    )


def _run(
    model: nn.Module, losses: Callable[[Any], Tensor], batch: Any
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """The losses, and every module's output in the order in which they were made."""
    outputs: list[tuple[str, Tensor]] = []
    handles = [
        module.register_forward_hook(
            lambda _module, _inputs, output, name=name: outputs.extend(
                (name, leaf.detach().clone()) for leaf in _tensors(output)[:1]
            )
        )
        for name, module in model.named_modules()
        if name
    ]
    state = torch.get_rng_state()
    try:
        values = losses(batch).detach().clone()
    finally:
        torch.set_rng_state(state)
        for handle in handles:
            handle.remove()
    return values, outputs


def _moved(before: Tensor, after: Tensor | None) -> bool:
    """Whether a row other than the last has moved."""
    if after is None or before.shape != after.shape or before.dim() == 0 or len(before) < 2:
        return False
    if not before.is_floating_point():
        return not torch.equal(before[:-1], after[:-1])
    first, second = before[:-1].double(), after[:-1].double()
    known = torch.isfinite(first) & torch.isfinite(second)
    gap = (first - second)[known].abs()
    scale = first[known].abs().amax() if known.any() else first.new_zeros(())
    return bool((gap > _MOVED * (scale + 1e-12)).any())


def _first_rows(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return leaf
    rows = leaf[:_SOME]
    return torch.cat([rows, rows]) if len(rows) == 1 else rows


def _change_last(leaf: Any) -> Any:
    """The last record replaced by something else of its kind."""
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return leaf
    changed = leaf.clone()
    changed[-1] = 2 * leaf[0] + 1 if leaf.is_floating_point() else leaf[0]
    return changed


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


@contextmanager
def _untouched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The buffers' values, which are put back at the end."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield buffers
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])


def _refuse_changed_buffers(model: nn.Module, before: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            module, _, own = name.rpartition(".")
            kind = type(model.get_submodule(module)).__name__
            raise RecordsMixError(
                f"The buffer '{own}' of the module '{module}' ({kind}) changes in a training "
                "forward pass: it would carry un-noised statistics of the records into the model. "
                "Build the layer without running statistics, or use GroupNorm "
                "(plumbline.suggest_fixes(model) does)."
            )
