"""Batch normalisation of one record: with fixed statistics, or over the record and its company.

A record of one row has no batch to be normalised over, so BatchNorm in training mode is refused. A
record that has company of its own (public inputs, in BatchClipping) is normalised together with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.layers import handles, refuses
from plumbline.gradients.lowering import Lowered, has_records, lowered
from plumbline.gradients.tape import Tape


@refuses(F.batch_norm)
def refuse_batch_statistics(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> None:
    """Refuses statistics of a record without company."""
    if training and not tape.has_company:
        known = tape.weight(weight) or tape.weight(bias)
        raise RecordsMixError(
            f"The batch normalisation{f' of {known.name!r}' if known else ''} is in training "
            "mode, where every record's output depends on the whole batch. Use GroupNorm "
            "(plumbline.suggest_fixes(model) does), or put the layer in evaluation mode."
        )


@handles(F.batch_norm, rewrites=True)
def batch_norm(
    tape: Tape,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """``F.batch_norm`` of one record's rows ``[N, C, ...]``."""
    if not has_records(input):
        return None

    def on_batch(_call: Lowered, args: Any, _kwargs: Any) -> Tensor:
        (rows,) = args
        if training:
            return _over_own_rows(rows, eps)
        fixed = (running_mean, running_var, None, None, False, momentum, eps)
        return F.batch_norm(rows.flatten(0, 1), *fixed).view(rows.shape)

    normal: Tensor = lowered(on_batch, (input,), {})
    shape = (1, -1, *(1,) * (input.dim() - 2))
    if weight is not None:
        normal = normal * weight.view(shape)
    return normal if bias is None else normal + bias.view(shape)


def _over_own_rows(rows: Tensor, eps: float) -> Tensor:
    """Rows ``[B, N, C, ...]``, normalised over the N rows of each record by themselves."""
    # Not by the fused kernel, whose rounding of one record depends on how many there are.
    own = (1, *range(3, rows.dim()))
    centred = rows - rows.mean(own, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(own, keepdim=True) + eps)


@contextmanager
def own_statistics(model: nn.Module) -> Iterator[None]:
    """Every BatchNorm normalises by the rows it sees, and neither uses nor updates others."""
    modules: list[Any] = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(module.training, module.track_running_stats) for module in modules]
    try:
        for module in modules:
            module.training, module.track_running_stats = True, False
        yield
    finally:
        for module, (training, tracked) in zip(modules, before, strict=True):
            module.training, module.track_running_stats = training, tracked
