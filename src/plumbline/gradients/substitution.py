"""Tracked tensors in the place of a model's parameters, for the length of a capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from plumbline.gradients.errors import UnsupportedModelError
from plumbline.gradients.tape import Weight
from plumbline.gradients.tracked import Tracked


@contextmanager
def substituted(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Weight]
) -> Iterator[dict[str, Tracked]]:
    """Puts tracked tensors in the place of ``parameters``, and the parameters back at the end.

    Tied parameters are one weight. What a module computed from tracked tensors and stored on itself
    (old-style weight norm does) is put back too.
    """
    tracked = {name: Tracked.of(weight) for name, weight in weights.items()}
    by_parameter = {id(parameter): tracked[name] for name, parameter in parameters.items()}
    changed: list[tuple[dict[str, object], str, object]] = []

    def put(holder: dict[str, object], name: str, value: object) -> None:
        changed.append((holder, name, holder[name]))
        holder[name] = value

    try:
        for module in model.modules():
            holder: dict[str, object] = module._parameters  # type: ignore[assignment]
            for name, parameter in module._parameters.items():
                if id(parameter) in by_parameter:
                    put(holder, name, by_parameter[id(parameter)])
            if isinstance(module, nn.RNNBase):
                flat = [by_parameter.get(id(one), one) for one in module._flat_weights]
                put(module.__dict__, "_flat_weights", flat)
            if module._forward_pre_hooks:
                for name, value in list(module.__dict__.items()):
                    if isinstance(value, Tensor):
                        put(module.__dict__, name, value)
        yield tracked
    finally:
        for holder, name, value in reversed(changed):
            holder[name] = value


def refuse_unsupported(model: nn.Module) -> None:
    """Refuses what cannot be captured at all, before anything runs."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UnsupportedModelError(
            "The model has no trainable parameter (requires_grad is False for all of them, or "
            "there are none), so there is no gradient to capture. Unfreeze what is to be trained."
        )
    for name, module in model.named_modules():
        where = f"The module '{name}'" if name else "The model"
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{where} is a TorchScript module, which hides its operations. Capture the "
                "original Python module."
            )
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise UnsupportedModelError(
                f"{where} is compiled by torch.compile, which hides what flows through its layers. "
                "Capture the model that was compiled (compiled._orig_mod), and keep the compiled "
                "one for evaluation: they share their weights."
            )
