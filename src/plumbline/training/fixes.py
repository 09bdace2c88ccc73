"""Repairs models that mix records: BatchNorm becomes GroupNorm.

``suggest_fixes`` returns a new model and leaves the given one as it is; ``fixes`` says what would
change. What it cannot repair stays, and the isolation check before the first step refuses it by
name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

# Exactly these: a subclass may do more than normalise, and that would be lost.
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_MOST_GROUPS = 32  # as in the paper: Wu and He 2018, "Group normalization"


@dataclass(frozen=True)
class Fix:
    """One module that is replaced.

    Attributes:
        module: Its name in the model; empty for the model itself.
        before: What it is.
        after: What takes its place.
    """

    module: str
    before: str
    after: str

    def __str__(self) -> str:
        where = f"'{self.module}'" if self.module else "the model itself"
        return f"{where}: {self.before} -> {self.after}"


def suggest_fixes(model: nn.Module, tell: Callable[[str], object] | None = print) -> nn.Module:
    """A copy of the model in which normalisation no longer mixes records.

    BatchNorm (and SyncBatchNorm) becomes GroupNorm with the largest divisor of the channels up to
    32 as the number of groups, with the same scale and shift; InstanceNorm with running statistics
    is built again without them. Everything else is a plain copy. Running statistics are dropped, so
    a pre-trained model should be tried out, and usually trained a little, before it is relied on.
    The copy has parameters of its own: build the optimizer from it.

    Args:
        model: The model; it is not changed.
        tell: Called with a line for every change; None for silence.
    """
    fixed = copy.deepcopy(model)
    memo: dict[int, nn.Module] = {}
    for name, module in list(fixed.named_modules(remove_duplicate=False)):
        if id(module) not in memo:
            replacement = _replacement(module)
            if replacement is None:
                continue
            memo[id(module)] = replacement
            if tell is not None:
                tell(str(_fix(name, module, replacement)))
        if not name:
            return memo[id(module)]
        fixed.set_submodule(name, memo[id(module)])
    return fixed


def fixes(model: nn.Module) -> list[Fix]:
    """What ``suggest_fixes`` would change, without changing anything."""
    found = []
    for name, module in model.named_modules():
        replacement = _replacement(module)
        if replacement is not None:
            found.append(_fix(name, module, replacement))
    return found


def _fix(name: str, before: nn.Module, after: nn.Module) -> Fix:
    return Fix(name, *(f"{type(one).__name__}({one.extra_repr()})" for one in (before, after)))


def _replacement(module: nn.Module) -> nn.Module | None:
    """What is to take the module's place, with its own parameters; None if it may stay."""
    new: nn.Module
    if type(module) in _BATCH_NORMS:
        assert isinstance(module, nn.modules.batchnorm._BatchNorm)
        channels = module.num_features
        # On [B, C] input a group of one channel is one number, which normalises to zero.
        flat = isinstance(module, nn.BatchNorm1d | nn.SyncBatchNorm)
        if flat and channels < 2:
            return None
        groups = _groups(channels, 2 if flat else 1)
        new = nn.GroupNorm(groups, channels, eps=module.eps, affine=module.affine)
    elif type(module) in _INSTANCE_NORMS:
        assert isinstance(module, nn.modules.instancenorm._InstanceNorm)
        if not module.track_running_stats:
            return None
        new = type(module)(module.num_features, eps=module.eps, affine=module.affine)
    else:
        return None
    if module.affine:  # the very parameters, with their type, device, ties and requires_grad
        new.weight, new.bias = module.weight, module.bias
    return new.train(module.training)


def _groups(channels: int, least: int) -> int:
    """The largest divisor up to 32 that leaves every group ``least`` channels."""
    most = min(_MOST_GROUPS, channels // least)
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)
