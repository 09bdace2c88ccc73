"""Losses by row, for all records at once.

``vmap`` takes ``F.cross_entropy`` apart into a dozen smaller functions, which cost more than a
small model. With ``reduction="none"`` it looks at each row by itself, so that a record's rows may
stand among those of others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.lowering import Lowered, by_record, has_records, lowered
from plumbline.gradients.tape import Tape


def _by_row(
    function: Callable[..., Tensor], tape: Tape, input: Tensor, target: Tensor, **options: Any
) -> Tensor | None:
    """A loss of each row ``[N, C, ...]``, at its class ``[N, ...]`` or probabilities."""

    def on_batch(call: Lowered, args: tuple[Tensor, Tensor], kwargs: Any) -> Tensor:
        losses = function(*(one.flatten(0, 1) for one in args), **options)
        return by_record(losses, tape.records)

    if (
        options.get("reduction") != "none"
        or not (has_records(input) and has_records(target))
        or input.dim() < 2
        or input.shape[:1] != target.shape[:1]
        or any(isinstance(value, Tensor) for value in options.values())
    ):
        return None
    return lowered(on_batch, (input, target), {})  # type: ignore[no-any-return]


for _function in (F.cross_entropy, F.nll_loss):
    handles(_function, rewrites=True)(partial(_by_row, _function))
