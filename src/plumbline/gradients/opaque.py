"""What is refused before it runs: compiled and scripted code, and modes of torch around a capture.

Compiled code hides what flows through its layers, so that nobody could tell one record's gradient
from another's. Norms and sums of gradients are computed after the model has run, in the precision
that their proven rounding bounds assume; under ``autocast`` torch would round them to 8 bits.
Inside the model or the loss it is welcome: there it ends before they are computed. Hooks on
gradients, such as a mask that keeps some weights as they are, would silently do nothing. Anomaly
detection would stop a run at a record whose gradient is not finite, which is to count as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from plumbline.gradients.errors import CaptureError, UnsupportedModelError


def refuse_opaque(part: Any, what: str = "The model") -> None:
    """Refuses a model, or a function such as a loss, that hides what it does.

    Raises:
        UnsupportedModelError: If a part of it is compiled, by torch.compile or as TorchScript.
    """
    if isinstance(part, nn.Module):
        for name, module in part.named_modules():
            refuse_opaque_module(f"{name}." if name else "", module, what)
    elif any(map(_compiled_function, [part, *getattr(part, "__dict__", {}).values()])):
        raise UnsupportedModelError(
            f"{what} is a function compiled by torch.compile, which hides what it does. Give the "
            "function as it was before."
        )


def refuse_opaque_module(prefix: str, module: nn.Module, what: str = "The model") -> None:
    """Refuses one module, known by the prefix of its parameters' names."""
    where = f"The module '{prefix[:-1]}'" if prefix else what
    if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
        raise UnsupportedModelError(
            f"{where} is compiled by torch.compile, which hides what flows through its layers. "
            "Give the original model (compiled._orig_mod; one compiled in place by "
            "model.compile() is built anew), with an optimizer of its parameters, and keep the "
            "compiled one for evaluation: they share their weights."
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            f"{where} is a TorchScript module, which hides its operations. Give the original "
            "Python module."
        )
    compiled = next((name for name, value in _attributes(module) if _compiled_function(value)), "")
    if compiled:
        raise UnsupportedModelError(
            f"{where} has a method or function '{compiled}' that is compiled by torch.compile, "
            "which hides what it does. Leave torch.compile out there, and compile a copy of the "
            "model for evaluation."
        )


def refuse_gradient_hooks(model: nn.Module, isolation: str) -> None:
    """Refuses hooks on the way back, which would not be called.

    Raises:
        UnsupportedModelError: Naming the parameter or the module that has one.
    """
    reason = (
        "has a hook on its gradient, which would not be called: no gradient is shown before it is "
        "clipped and noised. Leave the hook out; freeze what is not to be trained with "
        "requires_grad_(False)"
    )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise UnsupportedModelError(f"The parameter '{name}' {reason}.")
    for name, module in model.named_modules():
        if isolation == "vmap" and (module._backward_hooks or module._backward_pre_hooks):
            raise UnsupportedModelError(
                f"The module '{name}' {reason}, or use isolation=\"loop\", which calls it."
            )


def refuse_autocast() -> None:
    """Refuses to go on under ``torch.autocast``.

    Raises:
        CaptureError: If it is on.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise CaptureError(
            "torch.autocast is on around private training, where norms and sums of gradients would "
            "be rounded to 8 bits and a record could count for more than its bound. Put it inside "
            "the model's forward or the loss instead."
        )


def refuse_anomaly_detection() -> None:
    """Refuses to go on under ``torch.autograd.detect_anomaly``.

    Raises:
        CaptureError: If it is on.
    """
    if torch.is_anomaly_enabled():
        raise CaptureError(
            "torch's anomaly detection is on (torch.autograd.detect_anomaly, or a trainer's "
            "detect_anomaly). It stops at a record whose gradient is not finite, and so shows that "
            "there is one; here such a record counts as zero. Turn it off, and look for the cause "
            "with made-up records."
        )


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from vars(module).items()
    for kind in type(module).__mro__:
        if not kind.__module__.startswith("torch."):
            yield from vars(kind).items()


def _compiled_function(value: Any) -> bool:
    """Whether a function was made by torch.compile, and not by torch.compiler.disable."""
    marks = getattr(value, "__dict__", None)
    if not isinstance(marks, dict):  # a class has a mappingproxy
        return False
    return "_torchdynamo_orig_callable" in marks and not marks.get("_torchdynamo_disable", False)
