"""A model's parts, collected in one walk: what is trainable, where, and what is unsupported."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from plumbline.gradients.errors import UnsupportedModelError
from plumbline.gradients.opaque import refuse_opaque_module


@dataclass
class ModelParts:
    """What a capture needs to know about a model.

    Attributes:
        parameters: The trainable parameters by name, tied ones once.
        holders: Each place that holds a trainable parameter: the module's dictionary, its key
            there, and the parameter's name.
        constants: The ids of buffers and frozen parameters, which are the same for every record.
        recurrent: Attributes of recurrent modules, which keep a second list of their parameters.
        hooked: Attributes of modules with forward pre-hooks, which may store what they compute.
        batch_norms: The modules, by name and type, that normalise by the batch they see.
        signature: Which parameters are trainable and which modules are in training mode.
    """

    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    holders: list[tuple[dict[str, nn.Parameter | None], str, str]] = field(default_factory=list)
    constants: set[int] = field(default_factory=set)
    recurrent: list[dict[str, Any]] = field(default_factory=list)
    hooked: list[dict[str, Any]] = field(default_factory=list)
    batch_norms: list[str] = field(default_factory=list)
    signature: tuple[object, ...] = ()
    _attributes: list[dict[str, Any]] = field(default_factory=list)
    _seen: list[Any] = field(default_factory=list)

    @property
    def current(self) -> bool:
        """Whether nothing has changed since the walk: much faster to see than to walk again."""
        seen = self._now()
        return len(seen) == len(self._seen) and all(map(is_, seen, self._seen))

    def remember(self) -> None:
        """To be called when everything is walked."""
        self._seen = self._now()

    def _now(self) -> list[Any]:
        """Whatever the walk depends on."""
        now: list[Any] = []
        for held in self._attributes:  # not the modules: so that the model can be freed
            parameters = held["_parameters"].values()
            now += held["training"], not held["_forward_pre_hooks"], held.get("_compiled_call_impl")
            now += held["_modules"].values()
            now += parameters
            now += [one is None or one.requires_grad for one in parameters]
        return now


def parts_of(model: nn.Module) -> ModelParts:
    """The model's parts, collected again when something has changed.

    Raises:
        UnsupportedModelError: If the model cannot be captured at all.
    """
    known = _KNOWN.get(model)
    if known is None or not known.current:
        known = _KNOWN[model] = _walked(model)
    return known


_KNOWN: weakref.WeakKeyDictionary[nn.Module, ModelParts] = weakref.WeakKeyDictionary()


def _walked(model: nn.Module) -> ModelParts:
    parts = ModelParts()
    names: dict[int, str] = {}
    modes: list[bool] = []
    for prefix, module in _walk(model):
        refuse_opaque_module(prefix, module)
        modes.append(module.training)
        parts._attributes.append(module.__dict__)
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if not parameter.requires_grad:
                parts.constants.add(id(parameter))
                continue
            name = names.setdefault(id(parameter), prefix + key)
            parts.parameters.setdefault(name, parameter)
            parts.holders.append((module._parameters, key, name))
        for buffer in module._buffers.values():
            parts.constants.add(id(buffer))
        if isinstance(module, nn.RNNBase):
            parts.recurrent.append(module.__dict__)
        if isinstance(module, _BatchNorm) and module.training:
            parts.batch_norms.append(f"'{prefix[:-1]}' ({type(module).__name__})")
        if module._forward_pre_hooks:
            parts.hooked.append(module.__dict__)
    if not parts.parameters:
        raise UnsupportedModelError(
            "The model has no trainable parameter (requires_grad is False for all of them, or "
            "there are none), so there is no gradient to capture. Unfreeze what you want to train."
        )
    parts.signature = (tuple(parts.parameters), tuple(modes))
    parts.remember()
    return parts


def _walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules, each with the prefix of its parameters' names, in ``named_modules`` order."""
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
