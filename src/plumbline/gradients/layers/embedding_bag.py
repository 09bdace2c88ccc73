"""Bags of tokens: ``F.embedding_bag`` as an embedding whose rows are reduced within each bag.

Bags of different lengths (``offsets``) are padded to the longest; padding adds nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.lowering import has_records
from plumbline.gradients.tape import Tape


@handles(F.embedding_bag, rewrites=True)
def embedding_bag(
    tape: Tape,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """``F.embedding_bag`` with one bag per record."""
    if tape.weight(weight) is None or tape.weight(per_sample_weights) is not None:
        return None
    tokens, shares = input, per_sample_weights
    counted = torch.ones_like(tokens, dtype=torch.bool)
    if input.dim() == 1:
        places, counted = _bags(len(input), offsets, include_last_offset, input.device)
        tokens = input[places] if len(input) else places
        shares = None if shares is None else shares[places]
    if padding_idx is not None:
        counted = counted & (tokens != padding_idx % weight.shape[0])
    rows = F.embedding(tokens, weight)  # weight is tracked: this is embedding's own handler
    if mode == "max":
        empty = ~counted.any(1, keepdim=True)
        rows = rows.masked_fill(~counted[..., None], -torch.inf)
        return rows.max(1).values.masked_fill(empty, 0)
    share = counted.to(rows.dtype) if shares is None else counted * shares.to(rows.dtype)
    total = (rows * share[..., None]).sum(1)
    if mode == "sum":
        return total
    return total / counted.sum(1, keepdim=True).clamp(min=1)


def _bags(
    length: int, offsets: Tensor | None, include_last: bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The positions of each bag's tokens, ``[B, T]``, and which of them are not padding."""
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor when the input is 1D, got None.")
    starts = offsets[:-1] if include_last else offsets
    stops = offsets[1:] if include_last else torch.cat([offsets[1:], offsets.new_tensor([length])])
    longest = length if has_records(offsets) else int((stops - starts).max()) if len(starts) else 0
    places = starts[:, None] + torch.arange(max(1, longest), device=device)
    counted = places < stops[:, None]
    return places.masked_fill(~counted, 0), counted
