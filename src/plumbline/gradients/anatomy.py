"""A model's parts, collected in one walk: what is trainable, where it hangs, what cannot be done."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from plumbline.gradients.errors import UnsupportedModelError


@dataclass
class Anatomy:
    """What a capture needs to know of a model.

    Attributes:
        parameters: The trainable parameters by name, tied ones once.
        holders: Each place where a trainable parameter hangs: the module's dictionary, its key
            there, and the parameter's name.
        constants: The identities of buffers and frozen parameters, which are the same for every record.
        recurrent: Recurrent modules, which keep a second list of their parameters.
        hooked: Modules with forward pre-hooks, which may store what they compute on themselves.
        signature: Which parameters are trainable and which modules are in training mode.
    """

    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    holders: list[tuple[dict[str, nn.Parameter | None], str, str]] = field(default_factory=list)
    constants: set[int] = field(default_factory=set)
    recurrent: list[nn.RNNBase] = field(default_factory=list)
    hooked: list[nn.Module] = field(default_factory=list)
    signature: tuple[object, ...] = ()


def anatomy_of(model: nn.Module) -> Anatomy:
    """One walk over the model; refuses what cannot be captured at all."""
    anatomy = Anatomy()
    names: dict[int, str] = {}
    modes: list[bool] = []
    for prefix, module in _walk(model):
        _refuse_opaque(prefix, module)
        modes.append(module.training)
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not parameter.requires_grad:
                anatomy.constants.add(id(parameter))
                continue
            name = names.setdefault(id(parameter), prefix + key)
            anatomy.parameters.setdefault(name, parameter)
            anatomy.holders.append((module._parameters, key, name))
        for buffer in module._buffers.values():
            anatomy.constants.add(id(buffer))
        if isinstance(module, nn.RNNBase):
            anatomy.recurrent.append(module)
        if module._forward_pre_hooks:
            anatomy.hooked.append(module)
    if not anatomy.parameters:
        raise UnsupportedModelError(
            "The model has no trainable parameter (requires_grad is False for all of them, or "
            "there are none), so there is no gradient to capture. Unfreeze what is to be trained."
        )
    anatomy.signature = (tuple(anatomy.parameters), tuple(modes))
    return anatomy


def _walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules with the prefix of their parameters' names, in ``named_modules``' order."""
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()

    def visit(prefix: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        found.append((prefix, module))
        for name, child in module._modules.items():
            if child is not None:
                visit(f"{prefix}{name}.", child)

    visit("", model)
    return found


def _refuse_opaque(prefix: str, module: nn.Module) -> None:
    compiled = module._compiled_call_impl is not None or "_orig_mod" in module._modules
    if not compiled and not isinstance(module, torch.jit.ScriptModule):
        return
    where = f"The module '{prefix[:-1]}'" if prefix else "The model"
    if compiled:
        raise UnsupportedModelError(
            f"{where} is compiled by torch.compile, which hides what flows through its layers. "
            "Capture the model that was compiled (compiled._orig_mod), and keep the compiled one "
            "for evaluation: they share their weights."
        )
    raise UnsupportedModelError(
        f"{where} is a TorchScript module, which hides its operations. Capture the original "
        "Python module."
    )
