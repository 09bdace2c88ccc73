"""Records must not mix: tested by running the model, not by looking at class names.

One record of a batch is changed, with the same random numbers: no other record's loss may move, and
no buffer may change in a training forward pass (running statistics carry records to later steps).
The first module whose output for an unchanged record moves is named. The check leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from plumbline.gradients.errors import CaptureError, RecordsMixError
from plumbline.gradients.random_state import RandomState

_SOME = 4
_MOVED = 1e-5


def check_isolation(model: nn.Module, losses: Callable[[Any], Tensor], batch: Any) -> bool:
    """Refuses a model or loss in which one record can move another's loss.

    Args:
        model: The model, in the mode in which it will be trained.
        losses: One loss per record of a batch, ``[B]``.
        batch: Real records (tensors with one row per record, in any nesting); a few are used.
            Numbers in them that are not finite are replaced by zero.

    Returns:
        Whether the test could tell: False when all records of the batch are alike (discrete ones
        cannot be changed otherwise than into each other), so that another batch is needed.

    Raises:
        RecordsMixError: Naming the first module that mixes records, or the buffer that changes.
        CaptureError: If the batch holds no tensors that could be changed.
    """
    few = _few(batch)
    other = tree_map(_change_last, few)
    with _untouched(model) as buffers, torch.no_grad():
        before, calls = _run(model, losses, few)
        _refuse_changed_buffers(model, buffers)
        after, changed = _run(model, losses, other)
    if before.dim() != 1 or before.shape != after.shape:
        return True  # the capture itself says what is wrong with such losses
    if not _moved(before, after):
        return _differ(few, other)
    raise RecordsMixError(
        f"One record changes another record's loss: records first mix in "
        f"{_culprit(model, calls, changed)}. Per-record clipping is meaningless then, and so is "
        "the guarantee. Replace BatchNorm by GroupNorm (plumbline.suggest_fixes(model) does), and "
        "compute nothing over the batch dimension."
    )


@dataclass(frozen=True)
class _Call:
    """One call of a module: what went in and what came out, copied."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def _run(
    model: nn.Module, losses: Callable[[Any], Tensor], batch: Any
) -> tuple[Tensor, list[_Call]]:
    """The losses, and every module's call in the order in which they ended."""
    calls: list[_Call] = []
    open_calls: list[list[Tensor]] = []

    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        open_calls.append(_copies((args, kwargs)))  # before the module can change them in place

    def leave(name: str, output: Any) -> None:
        calls.append(_Call(name, open_calls.pop(), _copies(output)))

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(
            module.register_forward_hook(
                lambda _module, _args, output, name=name: leave(name, output)
            )
        )
    state = RandomState(model.parameters())
    try:
        values = losses(batch).detach().clone()
    finally:
        state.restore()
        for handle in handles:
            handle.remove()
    return values, calls


def _culprit(model: nn.Module, calls: list[_Call], changed: list[_Call]) -> str:
    """Where an unchanged record first moved, in words."""
    moved = {
        "outputs": [any(map(_moved, a.outputs, b.outputs)) for a, b in zip(calls, changed)],  # noqa: B905
        "inputs": [any(map(_moved, a.inputs, b.inputs)) for a, b in zip(calls, changed)],  # noqa: B905
    }
    first = next((place for place, is_moved in enumerate(moved["outputs"]) if is_moved), None)
    if first is None:
        return "the loss function, or code outside the modules"
    name = calls[first].name
    if not moved["inputs"][first]:
        return _described(model, name)
    # It was given what had moved already: by the innermost module around it that was not.
    for place in range(first + 1, len(moved["inputs"])):
        around = calls[place].name
        if (not around or name.startswith(f"{around}.")) and not moved["inputs"][place]:
            return f"the code of {_described(model, around)}, before its module '{name}'"
    return "the loss function, before it calls the model"


def _described(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name)).__name__
    return f"the module '{name}' ({kind})" if name else f"the model itself ({kind})"


def _moved(before: Tensor, after: Tensor) -> bool:
    """Whether a row other than the last has moved."""
    if before.shape != after.shape or before.dim() == 0 or len(before) < 2:
        return False
    if not before.is_floating_point():
        return not torch.equal(before[:-1], after[:-1])
    first, second = before[:-1].double(), after[:-1].double()
    known = torch.isfinite(first)
    if not torch.equal(known, torch.isfinite(second)):
        return True
    gap = (first - second)[known].abs()
    scale = first[known].abs().amax() if known.any() else first.new_zeros(())
    return bool((gap > _MOVED * (scale + 1e-12)).any())


def _few(batch: Any) -> Any:
    """A few records, the last of which differs from the first if any does; at least two rows."""
    leaves = [leaf for leaf in _tensors(batch) if leaf.dim()]
    if not leaves:
        raise CaptureError(
            f"The batch, of type {type(batch).__name__}, shows no tensors with one row per record, "
            "so it cannot be tested whether records mix. Let the data set (or the collate "
            "function) give tensors in a tuple, a list or a dict."
        )
    rows = len(leaves[0])
    differs = torch.zeros(rows, dtype=torch.bool, device="cpu")
    for leaf in leaves:
        if len(leaf) == rows:
            differs |= (leaf != leaf[:1]).reshape(rows, -1).any(1).cpu()
    other = int(differs.nonzero()[0]) if differs.any() else 0
    index = torch.tensor([*range(min(rows, _SOME - 1)), other], device="cpu")

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != rows:
            return leaf
        some = leaf[index.to(leaf.device)]
        return some.nan_to_num(0, 0, 0) if some.is_floating_point() else some

    return tree_map(of, batch)


def _change_last(leaf: Any) -> Any:
    """The last record replaced by something else of its kind."""
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return leaf
    changed = leaf.clone()
    changed[-1] = 2 * leaf[0] + 1 if leaf.is_floating_point() else leaf[0]
    return changed


def _differ(one: Any, other: Any) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def _copies(values: Any) -> list[Tensor]:
    return [leaf.detach().clone() for leaf in _tensors(values)]


@contextmanager
def _untouched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The buffers' values, which are put back at the end."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield buffers
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _refuse_changed_buffers(model: nn.Module, before: dict[str, Tensor]) -> None:
    for name, buffer in model.named_buffers():
        if name not in before or not torch.equal(buffer, before[name]):
            module, _, own = name.rpartition(".")
            kind = type(model.get_submodule(module)).__name__
            raise RecordsMixError(
                f"The buffer '{own}' of the module '{module}' ({kind}) changes in a training "
                "forward pass: it would carry un-noised statistics of the records into the model. "
                "Build the layer without running statistics, or use GroupNorm "
                "(plumbline.suggest_fixes(model) does)."
            )
