"""Opacus in its hooks, functorch and ghost modes, without its data loader and accountant.

The parts are those `PrivacyEngine.make_private` would assemble; they are put together by hand so
that a step is fed the fixed batch directly.
"""

from __future__ import annotations

import functools
import warnings

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.layers import DPMultiheadAttention
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from benchmarks.contestants.base import Settings
from benchmarks.models import Workload

# Opacus registers full backward hooks on modules whose input (images, tokens) needs no gradient.
warnings.filterwarnings("ignore", message="Full backward hook is firing")
# Its functorch mode opens an autocast region for float32, which torch declines.
warnings.filterwarnings("ignore", message="In CPU autocast")


class OpacusStep:
    """One Opacus mode: wrapped module, wrapped optimizer, and for ghost a wrapped loss."""

    def __init__(
        self, mode: str, workload: Workload, settings: Settings, size: int | None = None
    ) -> None:
        self.x, self.y = workload.batch(size)
        model = opacus_network(workload.model())
        criterion = nn.CrossEntropyLoss()
        sgd = torch.optim.SGD(model.parameters(), lr=settings.learning_rate)
        options = {
            "noise_multiplier": settings.noise_multiplier,
            "max_grad_norm": settings.clip,
            "expected_batch_size": len(self.y),
        }
        if mode == "ghost":
            self.model = GradSampleModuleFastGradientClipping(
                model, max_grad_norm=settings.clip, use_ghost_clipping=True
            )
            self.optimizer = DPOptimizerFastGradientClipping(sgd, **options)
            self.loss = DPLossFastGradientClipping(self.model, self.optimizer, criterion)
        else:
            self.model = GradSampleModule(model, force_functorch=mode == "functorch")
            self.optimizer = DPOptimizer(sgd, **options)
            self.loss = criterion

    def step(self) -> None:
        """The usual loop body; ghost mode hides its second backward in `backward`."""
        self.optimizer.zero_grad()
        self.loss(self.model(self.x), self.y).backward()
        self.optimizer.step()

    def parameters(self) -> dict[str, Tensor]:
        """Copies of the weights under the plain network's names (q, k, v joined again)."""
        found = {
            name.replace(".out_proj.linear.", ".out_proj."): p.detach().clone()
            for name, p in self.model._module.named_parameters()
        }
        for name in [n for n in found if ".qlinear." in n]:
            parts = [found.pop(name.replace(".qlinear.", f".{c}linear.")) for c in "qkv"]
            found[name.replace(".qlinear.", ".in_proj_")] = torch.cat(parts)
        return found


def opacus_network(model: nn.Module) -> nn.Module:
    """The model after Opacus' own fixer, computing the same function as before.

    The fixer replaces `nn.MultiheadAttention` by `DPMultiheadAttention`, which in Opacus 1.6 with
    `batch_first` reads `[B, heads, T, d]` memory as `[B, T, heads * d]` (its pull request 825). A
    permutation before the output projection undoes that, at the price the correct code pays.
    """
    fixed = ModuleValidator.fix(model).train()
    for module in fixed.modules():
        if isinstance(module, DPMultiheadAttention) and module.batch_first:
            module.out_proj = _MergedHeads(module.num_heads, module.out_proj)
    return fixed


class _MergedHeads(nn.Module):
    def __init__(self, heads: int, linear: nn.Linear) -> None:
        super().__init__()
        self.heads = heads
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        x = x.view(batch, self.heads, length, width // self.heads)
        return self.linear(x.transpose(1, 2).reshape(batch, length, width))


hooks = functools.partial(OpacusStep, "hooks")
functorch = functools.partial(OpacusStep, "functorch")
ghost = functools.partial(OpacusStep, "ghost")
