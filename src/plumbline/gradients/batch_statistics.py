"""BatchNorm with the statistics of small groups of rows instead of the whole batch.

A record and its public companions, or the records of a bucket, go through BatchNorm by themselves:
one group's content never changes another group's output. Running statistics are neither used nor
updated. The modules are restored when the context ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Forward = Callable[[Tensor], Tensor]


@contextmanager
def grouped_batch_norm(model: nn.Module, index: Tensor) -> Iterator[None]:
    """Every BatchNorm of ``model`` normalises rows with equal ``index`` (``[rows]``) together."""
    groups = int(index.max()) + 1 if len(index) else 0
    sizes = torch.bincount(index, minlength=groups)

    def forward_of(module: _BatchNorm) -> Forward:
        def forward(rows: Tensor) -> Tensor:
            _refuse_other_rows(rows, index)
            centred = rows - _means(rows, index, sizes)
            spread = _means(centred.square(), index, sizes)
            return _affine(module, centred * torch.rsqrt(spread + module.eps))

        return forward

    with _replaced(model, forward_of):
        yield


@contextmanager
def without_batch_norm(model: nn.Module) -> Iterator[None]:
    """Every BatchNorm of ``model`` only scales and shifts, to find what else mixes records."""
    with _replaced(model, lambda module: lambda rows: _affine(module, rows)):
        yield


@contextmanager
def _replaced(model: nn.Module, forward_of: Callable[[_BatchNorm], Forward]) -> Iterator[None]:
    modules = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    # Some libraries set a forward of their own on a module; it must be restored afterwards.
    before = [module.__dict__.get("forward") for module in modules]
    try:
        for module in modules:
            module.forward = forward_of(module)  # type: ignore[method-assign, assignment]
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            module.__dict__.pop("forward", None)
            if own is not None:
                module.forward = own  # type: ignore[method-assign]


def _means(rows: Tensor, index: Tensor, sizes: Tensor) -> Tensor:
    """Each row's group's mean per channel, ``[rows, C, 1, ...]``."""
    own = rows.flatten(2).mean(2) if rows.dim() > 2 else rows
    sums = own.new_zeros(len(sizes), own.shape[1]).index_add(0, index, own)
    means = (sums / sizes[:, None])[index]
    return means.reshape(*means.shape, *(1,) * (rows.dim() - 2))


def _affine(module: _BatchNorm, rows: Tensor) -> Tensor:
    shape = (1, -1, *(1,) * (rows.dim() - 2))
    if module.weight is not None:
        rows = rows * module.weight.view(shape)
    if module.bias is not None:
        rows = rows + module.bias.view(shape)
    return rows


def _refuse_other_rows(rows: Tensor, index: Tensor) -> None:
    if len(rows) != len(index):
        raise ValueError(
            f"A BatchNorm layer got {len(rows)} rows, but the batch has {len(index)}: the model "
            "folds other dimensions into the batch, so rows cannot be told apart. Use "
            "another normalisation there."
        )
