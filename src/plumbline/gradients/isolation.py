"""Checks that records do not mix, by running the model rather than by looking at class names.

The first and the last record of a batch are changed in turn, with the same random numbers: no other
record's loss may move. Nor may a buffer or parameter change in a training forward pass, which would
carry records to later steps (running statistics) or out of the training (an embedding with
``max_norm``). The check runs at the current weights and again next to them, where a factor that
starts at zero hides nothing. An error names the first module whose output for an unchanged record
moves. The check leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from plumbline.gradients.errors import CaptureError, RecordsMixError
from plumbline.gradients.random_state import RandomState

_SOME = 4
_MOVED = 1e-5
_LITTLE = 0.05


def check_isolation(model: nn.Module, losses: Callable[[Any], Tensor], batch: Any) -> bool:
    """Refuses a model or loss in which one record can change another's loss.

    Args:
        model: The model, in the mode in which it will be trained.
        losses: One loss per record of a batch, ``[B]``.
        batch: Real records (tensors with one row per record, in any nesting); a few are used.
            Non-finite numbers in them are replaced by zero.

    Returns:
        Whether the check was conclusive: False when all records of the batch are equal (discrete
        records can only be changed into each other), so that another batch is needed.

    Raises:
        RecordsMixError: Naming the first module that mixes records, or what changes in the model.
        CaptureError: If the batch has no tensors that can be changed.
    """
    few = _few(batch)
    conclusive = False
    with _untouched(model) as held, torch.no_grad():
        for nudged in (False, True):
            if nudged:
                _step_aside(model)
            before, calls = _run(model, losses, few)
            if not nudged:
                _refuse_changes(model, held)
            for changed in _Changed:
                other = tree_map(changed.other, few)
                after, others = _run(model, losses, other)
                if before.dim() != 1 or before.shape != after.shape:
                    return True  # the capture itself explains what is wrong with these losses
                if changed.moved(before, after):
                    raise RecordsMixError(_mixing(_culprit(model, changed, calls, others)))
                conclusive |= _differ(few, other)
    return conclusive


class _Changed(Enum):
    """Which record is changed; the others are compared."""

    LAST = -1
    FIRST = 0

    @property
    def watched(self) -> slice:
        """The rows of all the others."""
        return slice(None, -1) if self is _Changed.LAST else slice(1, None)

    def other(self, leaf: Any) -> Any:
        """The record replaced by another value of the same kind."""
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        changed, source = leaf.clone(), leaf[-1 - self.value]
        changed[self.value] = 2 * source + 1 if leaf.is_floating_point() else source
        return changed

    def moved(self, before: Tensor, after: Tensor) -> bool:
        """Whether a row that should not have moved did."""
        if before.shape != after.shape or before.dim() == 0 or len(before) < 2:
            return False
        first, second = before[self.watched], after[self.watched]
        if not before.is_floating_point():
            return not torch.equal(first, second)
        first, second = first.double(), second.double()
        known = torch.isfinite(first)
        if not torch.equal(known, torch.isfinite(second)):
            return True
        gap = (first - second)[known].abs()
        scale = first[known].abs().amax() if known.any() else first.new_zeros(())
        return bool((gap > _MOVED * (scale + 1e-12)).any())


@dataclass(frozen=True)
class _Call:
    """One call of a module: copies of its inputs and outputs."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def _run(
    model: nn.Module, losses: Callable[[Any], Tensor], batch: Any
) -> tuple[Tensor, list[_Call]]:
    """The losses, and every module's call, in the order in which they finished."""
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


_LOSS = "the loss function"


def _mixing(where: str) -> str:
    remedy = (
        "Return one loss per record, from its own output and target alone. A mean or a sum, or a "
        "target [B] against an output [B, 1], which compares all pairs, does not do that."
        if where.startswith(_LOSS)
        else "Replace BatchNorm by GroupNorm (plumbline.suggest_fixes(model) does), give recurrent "
        "and attention layers batch_first=True, and compute nothing over the batch dimension."
    )
    return (
        f"One record changes another record's loss: records first mix in {where}. Per-record "
        f"clipping is then meaningless, and so is the guarantee. {remedy}"
    )


def _culprit(model: nn.Module, changed: _Changed, calls: list[_Call], others: list[_Call]) -> str:
    """Where an unchanged record first moved, in words."""
    pairs = list(zip(calls, others))  # noqa: B905
    moved = {
        "outputs": [any(map(changed.moved, a.outputs, b.outputs)) for a, b in pairs],
        "inputs": [any(map(changed.moved, a.inputs, b.inputs)) for a, b in pairs],
    }
    first = next((place for place, is_moved in enumerate(moved["outputs"]) if is_moved), None)
    if first is None:
        return f"{_LOSS}, or code outside the modules"
    name = calls[first].name
    if not moved["inputs"][first]:
        return _described(model, name)
    # Its inputs had already moved: look for the innermost enclosing module whose inputs had not.
    for place in range(first + 1, len(moved["inputs"])):
        around = calls[place].name
        if (not around or name.startswith(f"{around}.")) and not moved["inputs"][place]:
            return f"the code of {_described(model, around)}, before its module '{name}'"
    return f"{_LOSS}, before it calls the model"


def _described(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name)).__name__
    return f"the module '{name}' ({kind})" if name else f"the model itself ({kind})"


def _few(batch: Any) -> Any:
    """A few records, at least two rows; the last one differs from the first if any record does."""
    leaves = [leaf for leaf in _tensors(batch) if leaf.dim()]
    if not leaves:
        raise CaptureError(
            f"The batch, of type {type(batch).__name__}, has no tensors with one row per record, "
            "so records cannot be checked for mixing. Make the data set (or the collate function) "
            "return tensors in a tuple, a list or a dict."
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


def _differ(one: Any, other: Any) -> bool:
    return any(not torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def _copies(values: Any) -> list[Tensor]:
    return [leaf.detach().clone() for leaf in _tensors(values)]


def _step_aside(model: nn.Module) -> None:
    """Moves the trainable weights a little, and zeros away from zero."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            size = max(float(parameter.square().mean().sqrt()), _LITTLE)
            aside = torch.randn(parameter.shape, generator=generator)
            parameter.add_(aside.to(parameter), alpha=_LITTLE * size)


def _held(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    yield from (("buffer", name, buffer) for name, buffer in model.named_buffers())
    yield from (("parameter", name, parameter) for name, parameter in model.named_parameters())


@contextmanager
def _untouched(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The values of buffers and parameters, restored at the end."""
    before = {name: held.detach().clone() for _, name, held in _held(model)}
    try:
        yield before
    finally:
        with torch.no_grad():
            for _, name, held in _held(model):
                if name in before:
                    held.copy_(before[name])


def _refuse_changes(model: nn.Module, before: dict[str, Tensor]) -> None:
    for kind, name, held in _held(model):
        if name not in before or not torch.equal(held, before[name]):
            module, _, own = name.rpartition(".")
            of = type(model.get_submodule(module)).__name__
            raise RecordsMixError(
                f"The {kind} '{own}' of the module '{module}' ({of}) changes in a training "
                "forward pass: it would carry un-noised statistics of the records into the model. "
                + _REMEDIES[kind]
            )


_REMEDIES = {
    "buffer": "Build the layer without running statistics, or use GroupNorm "
    "(plumbline.suggest_fixes(model) does).",
    "parameter": "Build the layer without the option that rewrites it (such as an embedding's "
    "max_norm), and scale the weights once, before training.",
}
