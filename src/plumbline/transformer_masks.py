"""Attention masks of texts, for one record at a time.

The networks of transformers look at a padding mask ``[1, T]`` to find out whether it hides anything
(``mask.all()``), which a model that is run for one record under ``torch.vmap`` cannot do. They take
a mask ``[1, 1, T, T]`` as it is, so one is made from the other: each token sees the tokens that are
not padding, and of these only the earlier ones where the network is causal. Which it is, is found
by trying: once for a network, on made-up tokens, both masks must give the same output.
"""

from __future__ import annotations

import weakref
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor

from plumbline.without_trace import evaluating

Form = Literal["all", "causal"]

_TOKENS, _SHOWN, _AGREES = 8, 6, 1e-4
_FORMS: weakref.WeakKeyDictionary[nn.Module, Form | None] = weakref.WeakKeyDictionary()


def learn_mask(model: nn.Module) -> None:
    """Finds out, once, which mask ``[1, 1, T, T]`` a network of transformers takes for a text."""
    if model in _FORMS or getattr(model, "main_input_name", None) != "input_ids":
        return
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        _FORMS[model] = None
        return
    device = next(model.parameters()).device
    vocabulary = len(model.get_input_embeddings().weight)  # type: ignore[operator]
    tokens = torch.arange(1, _TOKENS + 1, device=device)[None] % vocabulary
    mask = (torch.arange(_TOKENS, device=device) < _SHOWN)[None].long()
    with evaluating(model), torch.no_grad():
        expected = _output(model, tokens, mask)
        forms: tuple[Form, ...] = ("all", "causal")
        for form in forms:
            try:
                found = _output(model, tokens, _square(mask, form))
            except (RuntimeError, ValueError, IndexError):
                continue
            if torch.allclose(found, expected, rtol=_AGREES, atol=_AGREES):
                _FORMS[model] = form
                return
    _FORMS[model] = None


def with_own_mask(model: nn.Module, named: dict[str, Any]) -> dict[str, Any]:
    """The inputs of one record, with a mask ``[1, T]`` made into one that needs no look at it."""
    mask = named.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2 or not is_batchedtensor(mask):
        return named
    form = _FORMS.get(model)
    return named if form is None else {**named, "attention_mask": _square(mask, form)}


def _square(mask: Tensor, form: Form) -> Tensor:
    length = mask.shape[1]
    seen = mask.bool()[:, None, None, :].expand(-1, 1, length, -1)
    if form == "all":
        return seen
    earlier = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    # A token always sees itself: a row that sees nothing has no attention to speak of.
    own = torch.eye(length, dtype=torch.bool, device=mask.device)
    return (seen & earlier) | own


def _output(model: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    output: Any = model(input_ids=tokens, attention_mask=mask)
    values: Tensor = output.logits if hasattr(output, "logits") else output[0]
    # Language models and encoders give an output for each token, hidden ones too.
    return values[:, :_SHOWN] if values.dim() == 3 else values
