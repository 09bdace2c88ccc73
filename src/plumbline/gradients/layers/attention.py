"""Multi-head attention: ``F.multi_head_attention_forward`` in terms of its linear projections.

Between the projections no parameter meets a record, so torch's own attention kernel runs there and
only the projections are captured, each as a linear layer. Inputs arrive with the records in the
second dimension, which is moved to the front before anything is projected, so that a batch as long
as its sequences cannot be misread. Random numbers are drawn as in torch's own function.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plumbline.gradients.errors import BatchDimensionError
from plumbline.gradients.layers import handles
from plumbline.gradients.tape import Tape, Weight

Projected = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values, ``[B, T, E]`` each."""


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
    """``F.multi_head_attention_forward``: queries ``[T, B, E]``, keys and values ``[S, B, E]``."""
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    parameters = (
        in_proj_weight, *separate, in_proj_bias, bias_k, bias_v, out_proj_weight, out_proj_bias,
    )  # fmt: skip
    known = next(weight for one in parameters if (weight := tape.weight(one)) is not None)
    is_constant = any(tape.weight(one) is not None for one in (query, key, value))
    if is_constant or static_k is not None or static_v is not None:
        return None
    if query.dim() != 3:
        raise BatchDimensionError(
            f"Attention with the parameter '{known.name}' got a query of shape "
            f"{tuple(query.shape)} without a batch dimension, so records cannot be told apart. "
            "Give it a batch: [T, B, E], or [B, T, E] with batch_first=True."
        )
    batch = query.shape[1]
    attn_mask, is_causal = _masks(
        query, key, num_heads, key_padding_mask, attn_mask, is_causal, need_weights,
        extra=(bias_k is not None) + add_zero_attn,
    )  # fmt: skip

    inputs = _batch_first(tape, known, query, key, value)
    if inputs is None:
        return None
    if use_separate_proj_weight:
        q, k, v = _separate(inputs, separate, in_proj_bias)
    else:
        assert in_proj_weight is not None
        q, k, v = _packed(inputs, in_proj_weight, in_proj_bias)
    if bias_k is not None and bias_v is not None:
        # A record may consist of several sequences (windows of an image).
        several = batch // tape.records
        own_k, own_v = (one.expand(tape.records, 1, -1) for one in (bias_k, bias_v))
        k = torch.cat([k, own_k.repeat_interleave(several, 0)], 1)
        v = torch.cat([v, own_v.repeat_interleave(several, 0)], 1)
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    q, k, v = (one.view(*one.shape[:2], num_heads, -1).transpose(1, 2) for one in (q, k, v))

    dropout_p = dropout_p if training else 0.0
    weights: Tensor | None = None
    if need_weights:
        attended, weights = _attend(q, k, v, attn_mask, dropout_p)
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        # The fused kernels cannot be differentiated twice, which Hessian products need.
        kernel: AbstractContextManager[object] = nullcontext()
        if tape.dense:
            kernel = sdpa_kernel(SDPBackend.MATH)
        with kernel:
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)
    attended = attended.transpose(1, 2).flatten(2)
    tape.batch_layout(attended, known)
    return F.linear(attended, out_proj_weight, out_proj_bias).transpose(0, 1), weights


def _batch_first(
    tape: Tape, known: Weight, query: Tensor, key: Tensor, value: Tensor
) -> Projected | None:
    """The inputs as ``[B, T, E]``; equal inputs stay the same tensor. None for constants."""
    first = {id(one): one.transpose(0, 1) for one in (query, key, value)}
    layouts = [tape.batch_layout(one, known) for one in first.values()]
    if any(layout is None for layout in layouts):
        return None
    return first[id(query)], first[id(key)], first[id(value)]


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
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Attention that also returns its weights ``[B, heads, T, S]``."""
    scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.transpose(-2, -1)
    weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
    if dropout_p > 0.0:
        weights = F.dropout(weights, p=dropout_p)
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
