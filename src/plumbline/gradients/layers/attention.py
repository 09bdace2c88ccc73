"""Attention: the fused kernel for all records at once, and ``F.multi_head_attention_forward``.

``vmap`` would run torch's fused attention record by record, so it is called outside of ``vmap``,
whether or not a parameter meets it. Multi-head attention is expressed through its linear
projections, which are captured each as a linear layer, and that kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.gradients.layers import handles
from plumbline.gradients.layers.random import dropped
from plumbline.gradients.lowering import Lowered, by_record, has_records, lowered
from plumbline.gradients.tape import Tape

Projected = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, ``[N, T, E]`` each."""


@handles(F.multi_head_attention_forward, rewrites=True)
def multi_head_attention(
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """``F.multi_head_attention_forward``: queries ``[T, N, E]``, keys and values ``[S, N, E]``."""
    if static_k is not None or static_v is not None or query.dim() != 3:
        return None
    batch = query.shape[1]
    attn_mask, is_causal = _masks(
        query, key, num_heads, key_padding_mask, attn_mask, is_causal, need_weights,
        extra=(bias_k is not None) + add_zero_attn,
    )  # fmt: skip

    # [N, T, E], N being 1; equal inputs stay the same tensor.
    first = {id(one): one.transpose(0, 1) for one in (query, key, value)}
    inputs = first[id(query)], first[id(key)], first[id(value)]
    if use_separate_proj_weight:
        separate = (q_proj_weight, k_proj_weight, v_proj_weight)
        q, k, v = _separate(inputs, separate, in_proj_bias)
    else:
        assert in_proj_weight is not None
        q, k, v = _packed(inputs, in_proj_weight, in_proj_bias)
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.expand(batch, 1, -1)], 1)
        v = torch.cat([v, bias_v.expand(batch, 1, -1)], 1)
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    q, k, v = (one.view(*one.shape[:2], num_heads, -1).transpose(1, 2) for one in (q, k, v))

    dropout_p = dropout_p if training else 0.0
    weights: Tensor | None = None
    if need_weights:
        attended, weights = _attend(tape, q, k, v, attn_mask, dropout_p)
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        attended = _attended(tape, q, k, v, attn_mask, dropout_p, is_causal)
    attended = attended.transpose(1, 2).flatten(2)
    return F.linear(attended, out_proj_weight, out_proj_bias).transpose(0, 1), weights


@handles(torch._nested_tensor_from_mask_left_aligned, rewrites=True)
def never_nested(tape: Tape, tensor: Tensor, mask: Tensor) -> bool:
    """Whether ``nn.TransformerEncoder`` may drop padding: its sizes would depend on the data."""
    return False


@handles(F.scaled_dot_product_attention, rewrites=True)
def attention(
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """``F.scaled_dot_product_attention`` of all records in one call of the kernel."""
    inputs = (query, key, value, attn_mask)
    if dropout_p > 0.0:  # by ordinary functions: the kernel would draw by place in the batch
        if enable_gqa:
            each = query.shape[-3] // key.shape[-3]
            key, value = (one.repeat_interleave(each, -3) for one in (key, value))
        scores_scale = 1.0 if scale is None else scale * math.sqrt(query.shape[-1])
        mask = _causal(query, key) if is_causal else attn_mask
        if mask is not None and mask.dtype == torch.bool:
            mask = _additive(~mask, query.dtype)
        return _attend(tape, query * scores_scale, key, value, mask, dropout_p)[0]
    if (
        any(tape.weight(one) is not None for one in inputs)
        or not any(isinstance(one, Tensor) and has_records(one) for one in inputs)
        or len({one.dim() for one in (query, key, value)}) > 1
    ):
        return None

    def on_batch(call: Lowered, args: Any, kwargs: Any) -> Tensor:
        *qkv, mask = args
        rank = query.dim()
        q, k, v = (one if one in call else one.expand(tape.records, *one.shape) for one in qkv)
        if mask is not None and rank == 4:
            own = mask if mask in call else mask[None]
            own = own.reshape(len(own), *(1,) * (rank + 1 - own.dim()), *own.shape[1:])
            if query.shape[0] > 1:  # the model's own batch
                own = own.expand(tape.records, query.shape[0], *own.shape[2:])
            mask = own.flatten(0, 1)
        elif mask is not None and mask in call:
            mask = mask.reshape(len(mask), *(1,) * (rank + 1 - mask.dim()), *mask.shape[1:])
        if rank == 4:
            q, k, v = (one.flatten(0, 1) for one in (q, k, v))
        output = F.scaled_dot_product_attention(
            q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return by_record(output, tape.records) if rank == 4 else output

    return lowered(on_batch, inputs, {})  # type: ignore[no-any-return]


def _causal(query: Tensor, key: Tensor) -> Tensor:
    shape = (query.shape[-2], key.shape[-2])
    return torch.ones(shape, dtype=torch.bool, device=query.device).tril()


def _attended(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, causal: bool
) -> Tensor:
    found = attention(tape, q, k, v, mask, dropout_p, causal)
    if found is None:
        found = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, causal)
    return found


def _packed(inputs: Projected, weight: Tensor, bias: Tensor | None) -> Projected:
    """Projections by one parameter ``[3 E, E]``, with one product per distinct input."""
    query, key, value = inputs
    size = query.shape[-1]
    if query is key and key is value:
        q, k, v = F.linear(query, weight, bias).chunk(3, -1)
    elif key is value:
        (w_q, w_kv), (b_q, b_kv) = _rows(weight, [size, 2 * size]), _rows(bias, [size, 2 * size])
        q = F.linear(query, w_q, b_q)  # type: ignore[arg-type]
        k, v = F.linear(key, w_kv, b_kv).chunk(2, -1)  # type: ignore[arg-type]
    else:
        weights = _rows(weight, [size] * 3)
        q, k, v = _separate(inputs, (weights[0], weights[1], weights[2]), bias)
    return q, k, v


def _separate(
    inputs: Projected, weights: tuple[Tensor | None, Tensor | None, Tensor | None],
    bias: Tensor | None,
) -> Projected:  # fmt: skip
    biases = _rows(bias, [len(bias) // 3] * 3 if bias is not None else [0] * 3)
    q, k, v = (
        F.linear(one, weight, own_bias)  # type: ignore[arg-type]
        for one, weight, own_bias in zip(inputs, weights, biases, strict=True)
    )
    return q, k, v


def _rows(packed: Tensor | None, sizes: list[int]) -> tuple[Tensor | None, ...]:
    return (None,) * len(sizes) if packed is None else torch.split(packed, sizes)


def _attend(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Attention that also returns its weights ``[B, heads, T, S]``."""
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
    weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
    if dropout_p > 0.0:
        weights = dropped(tape, weights, dropout_p)
    return weights @ v, weights


def _masks(
    query: Tensor,
    key: Tensor,
    num_heads: int,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    need_weights: bool,
    extra: int,
) -> tuple[Tensor | None, bool]:
    """One mask to add to the scores, ``[B or 1, heads or 1, T or 1, S + extra]``.

    Also says whether to use torch's causal kernel instead. ``extra`` counts the keys added at the
    end, which are never masked.
    """
    batch, source = query.shape[1], key.shape[0]
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module "
            "method `generate_square_subsequent_mask` to create this mask."
        )
    if is_causal and key_padding_mask is None and not need_weights:
        return None, True
    padding = _additive(key_padding_mask, query.dtype)
    mask = _additive(attn_mask, query.dtype)
    if padding is not None:
        padding = F.pad(padding, (0, extra)).view(batch, 1, 1, source + extra)
    if mask is not None:
        whole = (query.shape[0], source)
        if tuple(mask.shape) not in (whole, (batch * num_heads, *whole)):
            raise RuntimeError(
                f"The shape of the attn_mask is {tuple(mask.shape)}, but should be {whole} or "
                f"{(batch * num_heads, *whole)}."
            )
        mask = F.pad(mask, (0, extra))
        mask = (
            mask[None, None] if mask.dim() == 2 else mask.reshape(batch, num_heads, *mask.shape[1:])
        )
    if mask is None or padding is None:
        return padding if mask is None else mask, False
    return mask + padding, False


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask (True: left out) as numbers to add to the scores."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
