"""Before the race: does everybody run the same distance?

Each contestant takes one real step with the noise off and a learning rate so large that the
weights after the step *are* its gradient. That is compared with a one-record-at-a-time float64
autograd loop. The code that is checked is therefore the code that is timed.

Two bounds, because a gradient through ReLUs is discontinuous: of the ResNet's tens of millions of
activations a few lie within rounding of zero, and a record that falls on the other side in
float32 has a gradient off by 1e-3 where all others agree to 1e-6 (in every library, autograd
included). So the gradient as a whole must agree to `TOLERANCE`, and each parameter's share to
`SHARE_TOLERANCE`, which still catches a parameter that was forgotten or scaled wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.contestants import BASELINE, Entry, Settings
from benchmarks.models import Workload

TOLERANCE = 1e-3
SHARE_TOLERANCE = 2e-2
RATE = 1e4

Gradient = dict[str, Tensor]


@dataclass(frozen=True)
class Oracle:
    """What each kind of step must release for one workload."""

    settings: Settings
    start: Gradient
    mean: Gradient
    clipped: Gradient
    bias_aware: Gradient

    def deviation(self, entry: Entry, workload: Workload) -> float:
        """Relative error of the gradient `entry` steps along; raises where a bound is broken."""
        contestant = entry.build(workload, self.settings)
        contestant.step()
        after = contestant.parameters()
        expected = {BASELINE: self.mean, "bam": self.bias_aware}.get(entry.name, self.clipped)
        if after.keys() != expected.keys():
            raise ValueError(f"parameters differ: {sorted(after.keys() ^ expected.keys())}")
        errors = {n: (self.start[n] - after[n]) / RATE - g for n, g in expected.items()}
        whole = float(_norm(expected))
        deviation = float(_norm(errors)) / whole
        if not deviation <= TOLERANCE:
            raise ValueError(f"its gradient is off by {deviation:.1e}, relative")
        for name, error in errors.items():
            # A share that is next to nothing is judged against the whole: it is all rounding.
            size = max(float(torch.linalg.vector_norm(expected[name])), 1e-2 * whole)
            share = float(torch.linalg.vector_norm(error)) / size
            if not share <= SHARE_TOLERANCE:
                raise ValueError(f"its gradient for {name} is off by {share:.1e}, relative")
        return deviation


def oracle(workload: Workload, settings: Settings) -> Oracle:
    """Run the loop. The clip is the median norm, so that half the records are clipped."""
    model = workload.model()
    start = {name: p.detach().double() for name, p in model.named_parameters()}
    model = model.double()
    x, y = workload.batch()
    x = x.double() if x.is_floating_point() else x

    def record(i: int) -> Gradient:
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        named = dict(model.named_parameters())
        return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))

    plain = [record(i) for i in range(len(y))]
    clip = float(torch.stack([_norm(g) for g in plain]).median())
    bias_aware = (_ascended(model, record, i, g, settings.radius) for i, g in enumerate(plain))
    return Oracle(
        settings=replace(settings, clip=clip, noise_multiplier=0.0, learning_rate=RATE),
        start=start,
        mean=_mean(plain, float("inf")),
        clipped=_mean(plain, clip),
        bias_aware=_mean(bias_aware, clip),
    )


def _ascended(
    model: nn.Module, record: Callable[[int], Gradient], i: int, gradient: Gradient, radius: float
) -> Gradient:
    """Record i's gradient at its own weights `theta + radius * g_i / |g_i|`."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    scale = radius / _norm(gradient)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.add_(scale * gradient[name])
    found = record(i)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(before[name])
    return found


def _norm(gradient: Gradient) -> Tensor:
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(g) for g in gradient.values()])
    )


def _mean(gradients: Iterable[Gradient], clip: float) -> Gradient:
    total: Gradient = {}
    count = 0
    for gradient in gradients:
        factor = float((clip / _norm(gradient)).clamp(max=1.0))
        count += 1
        for name, g in gradient.items():
            total[name] = total[name].add_(g, alpha=factor) if name in total else factor * g
    return {name: g / count for name, g in total.items()}
