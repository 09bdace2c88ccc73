"""How sharp a minimum is, and what that means for clipping and noise (Sharpness-Aware Training).

The sharper the loss, the longer gradients grow around a minimum (Theorem 3.1) and the further noise
throws the next gradient (Theorem 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plumbline.diagnostics.base import Sample, finite_or, norm, scaled
from plumbline.diagnostics.landscape import moved
from plumbline.results import Number, Undefined


def estimated_sharpness(
    model: nn.Module, sample: Sample, loss: Callable[[], float], radius: float
) -> Number:
    """``l(w^p) - l(w)`` with ``w^p = w + radius g / |g|``, uphill along the plain mean gradient.

    Args:
        model: The model.
        sample: Its gradients.
        loss: Evaluates the mean loss at the weights as they are.
        radius: rho.
    """
    plain = sample.plain
    if (nothing := plain.nothing) is not None:
        return nothing
    size = norm(plain.mean)
    if size == 0:
        return Undefined("the mean gradient is zero")
    before = loss()
    with moved(model, scaled(plain.mean, radius / size)):
        return finite_or(loss() - before, "the loss is not finite")


_KINK = "the loss has a kink there"


def noise_bound(learning_rate: float, sharpness: float, noise_norm: float) -> float:
    """Theorem 3.2's right side: how far noise of a step moves the next gradient, at most.

    Args:
        learning_rate: eta.
        sharpness: The largest eigenvalue along the step, in absolute value.
        noise_norm: The norm of the noise on the mean gradient; ``sigma C sqrt(d) / L`` on average.
    """
    return learning_rate * sharpness * noise_norm


def two_minima(weights: Tensor) -> Tensor:
    """The toy loss of App. C.3, at ``[..., 2]``: flat about (2.5, 2.5), sharp about (7.5, 7.5).

    The paper prints c_1 in both of its parts; the second is about c_2, or it would have no minimum
    there. At a centre the other part still weighs exp(-sqrt(50)), with a kink: both minima are zero
    up to 0.0009.
    """
    flat = (weights - weights.new_tensor([2.5, 2.5])).norm(dim=-1)
    sharp = (weights - weights.new_tensor([7.5, 7.5])).norm(dim=-1)
    near = torch.softmax(torch.stack([-flat, -sharp]), 0)
    tiny = torch.finfo(weights.dtype).tiny
    of_flat = torch.sigmoid(flat / 5 - 5 / flat.clamp(min=tiny))
    of_sharp = torch.sigmoid(5 * sharp / 5 - 5 / (5 * sharp).clamp(min=tiny))
    return near[0] * of_flat + near[1] * of_sharp


@dataclass(frozen=True)
class NoisyStep:
    """A step of gradient descent on ``two_minima``, with noise and without (Fig. 4).

    Attributes:
        sharpness: ``|H|`` at the weights.
        difference: ``|grad l(w - eta g) - grad l(w - eta (g + noise))|``.
        bound: Theorem 3.2's right side, with the largest ``|H|`` found along the noise.
    """

    sharpness: Number
    difference: float
    bound: Number


def descend_two_minima(
    start: Tensor, generator: torch.Generator, *, steps: int, learning_rate: float, noise: float
) -> list[NoisyStep]:
    """Noisy gradient descent from ``start``, measured at every step."""
    weights = start.double()
    found = []
    for _ in range(steps):
        gradient = _gradient(weights)
        drawn = noise * torch.randn(2, generator=generator, dtype=torch.float64)
        clean, noisy = (
            weights - learning_rate * gradient,
            weights - learning_rate * (gradient + drawn),
        )
        parts = torch.linspace(0, 1, 21, dtype=torch.float64)[:, None]
        along = _curvatures(torch.cat([weights[None], clean + parts * (noisy - clean)])).tolist()
        bound = noise_bound(learning_rate, max(along[1:]), float(drawn.norm()))
        found.append(
            NoisyStep(
                sharpness=finite_or(along[0], _KINK),
                difference=float((_gradient(clean) - _gradient(noisy)).norm()),
                bound=finite_or(bound, _KINK),
            )
        )
        weights = noisy
    return found


def _gradient(weights: Tensor) -> Tensor:
    held = weights.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(two_minima(held), held)[0]


def _curvatures(points: Tensor) -> Tensor:
    """``|H|`` at each of the points ``[P, 2]``, ``[P]``; infinite at a kink."""
    held = points.detach().requires_grad_()
    with torch.enable_grad():
        (first,) = torch.autograd.grad(two_minima(held).sum(), held, create_graph=True)
        rows = [torch.autograd.grad(first[:, i].sum(), held, retain_graph=True)[0] for i in (0, 1)]
    hessians = torch.stack(rows, 1)
    smooth = hessians.isfinite().all(2).all(1)
    largest = torch.linalg.eigvalsh(hessians.nan_to_num(0, 0, 0)).abs().amax(1)
    return torch.where(smooth, largest, math.inf)
