"""Whether a model and its loss are made of torch's own modules, and nothing else runs.

The code of these modules reads what it is given, their parameters and buffers, and their settings:
no clock, no file, no variable of the user's, and no value of a tensor to decide what comes next. So
all that decides which operations such a model runs is compared here, at a glance: the modules and
their types, modes, settings and hooks, and the types and shapes of their tensors. A subclass, a
``forward`` of its own, a hook, a parametrisation or a layer that draws random numbers is someone
else's code, or depends on more: the model is then not of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from plumbline.gradients.holders import Holders

_DRAWING = {
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
}  # fmt: skip
_KINDS: set[type[nn.Module]] = _DRAWING | {
    nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d,
    nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish,
    nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink, nn.Threshold, nn.GLU,
    nn.Softmax, nn.LogSoftmax,
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d,
    nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss, nn.BCELoss,
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss,
}  # fmt: skip
_CODE = {kind.forward for kind in _KINDS}
_PLACES = nn.functional, nn.Module, nn.Sequential, nn.Conv1d, nn.Conv2d, nn.Conv3d
_MAKING = "__init__", "__setstate__"  # modules, and running none: torch's compiler replaces these
_NAMES = [
    [name for name, one in vars(place).items() if callable(one) and name not in _MAKING]
    for place in _PLACES
]
_CALLED = [
    (vars(place).get, names, [vars(place)[name] for name in names])
    for place, names in zip(_PLACES, _NAMES, strict=True)
]
"""What the code of these modules may call, as it was when this file was imported."""
_any_hook_for_all: Callable[[], object] = torch_module._has_any_global_hook
_CALL = nn.Module.__call__
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN = frozenset(vars(nn.Module()))
_PLAIN = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device})


class TorchModules:
    """Some modules with all they contain, as they are now.

    Args:
        modules: The model and the loss, say; anything may be given.

    Attributes:
        alone: Whether they are torch's own, and nothing else runs with them.
    """

    def __init__(self, *modules: Any) -> None:
        self._held = Holders()
        self._modules: list[nn.Module] = []
        self.alone = all(self._add(one) for one in modules)
        self._types: list[Any] = list(map(type, self._modules))
        self._code = [(kind, kind.forward) for kind in dict.fromkeys(self._types)]
        self.alone = self.alone and all(code in _CODE for _, code in self._code)
        self._tensors = [one for module in self._modules for one in _tensors(module)]
        self._kinds = list(map(_kind, self._tensors))
        self._dtype = torch.get_default_dtype()
        self._held.remember()
        self.alone = self.alone and self._only_code()

    def unchanged(self) -> bool:
        """Whether all that decides what they do is as it was; of no use if not ``alone``."""
        return (
            self._held.untouched()
            and list(map(type, self._modules)) == self._types
            and list(map(_kind, self._tensors)) == self._kinds
            and torch.get_default_dtype() == self._dtype
            and self._only_code()
        )

    def _add(self, module: Any) -> bool:
        """Notes a module; whether it is one of torch's, with nothing of anyone else's on it."""
        if type(module) not in _KINDS:
            return False
        self._modules.append(module)
        own = vars(module)
        self._held.add(own)
        for name, held in own.items():
            if name in _HOOKS or name in ("_parameters", "_buffers", "_modules"):
                self._held.add(held)
            elif name not in _OWN and not self._is_setting(held):
                return False
        if any(own[name] for name in _HOOKS) or own.get("_compiled_call_impl") is not None:
            return False
        if type(module) in _DRAWING and own["training"] and own["p"]:
            return False
        if own.get("max_norm") is not None:  # an embedding that writes to its weights
            return False
        if any(type(one) not in (nn.Parameter, Tensor) for one in _tensors(module)):
            return False
        return all(self._add(one) for one in own["_modules"].values())

    def _is_setting(self, held: Any) -> bool:
        if type(held) not in (list, tuple):
            return type(held) in _PLAIN
        self._held.add(held)
        return all(type(one) in _PLAIN for one in held)

    def _only_code(self) -> bool:
        """Whether torch's own code is what runs: nothing was replaced, no hook is on them all."""
        return (
            all(kind.forward is code for kind, code in self._code)
            and all(kind.__call__ is _CALL for kind, _ in self._code)
            and all(all(map(is_, map(now, names), own)) for now, names, own in _CALLED)
            and not _any_hook_for_all()
        )


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    for one in (*module._parameters.values(), *module._buffers.values()):
        if one is not None:
            yield one


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return (
        type(tensor), tensor.requires_grad, tensor.dtype, tensor.device, tensor.shape,
        tensor.stride(),
    )  # fmt: skip
