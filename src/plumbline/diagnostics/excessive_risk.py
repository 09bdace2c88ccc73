"""What a private step costs each group (Gradient Misalignment, Props. 1 to 3; Tran et al., 2021).

The change of a group's loss in one step, to second order, split into what an ordinary step would
do, what clipping adds (R_clip) and what noise adds (R_noise). R_clip is split in two ways: scaling
the gradient first and turning it then (R_mag, R_dir; Prop. 2), or turning it first (the starred
ones; Prop. 2*). With ``M_B g_B = |g_B| / |gbar_B| gbar_B``, every term needs two Hessian-vector
products a batch and group.

Ours differs from the paper as printed: R_noise is divided by L^2, as the algorithm divides the
noise, and is positive where the trace is (Prop. 1 prints a minus; noise raises the loss of a convex
problem).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.diagnostics.base import Sample, finite_or
from plumbline.diagnostics.curvature import Hessian, Trace
from plumbline.results import Number, Undefined


@dataclass(frozen=True)
class ExcessiveRisk:
    """A group's expected change of loss in one step, by cause.

    Attributes:
        nonprivate: What the step would do without clipping and noise.
        clip: R_clip, what clipping adds; ``magnitude + direction``.
        noise: R_noise, what noise adds.
        magnitude: R_mag (Eq. 14), which another learning rate would remove.
        direction: R_dir (Eq. 15).
        magnitude_star: R_mag* (Eq. 17).
        direction_star: R_dir* (Eq. 16).
        gradient_norm: ``|g_Da|``.
        angle_loss: ``E[|gbar_B| (cos theta_B - cos thetabar_B)]``, of Prop. 3.
        angle_loss_star: ``E[|g_B| (cos theta_B - cos thetabar_B)]``, of Prop. 3*.
    """

    nonprivate: Number
    clip: Number
    noise: Number
    magnitude: Number
    direction: Number
    magnitude_star: Number
    direction_star: Number
    gradient_norm: Number
    angle_loss: Number
    angle_loss_star: Number


def excessive_risk(
    group: Hessian,
    batches: Sequence[Sample],
    learning_rate: float,
    trace: Trace | None = None,
) -> ExcessiveRisk:
    """The terms of Props. 1 and 2 for one group.

    Args:
        group: The Hessian (and gradient) of the group's mean loss.
        batches: Batches of the training data, over which expectations are taken; each says how it
            is clipped and noised.
        learning_rate: eta.
        trace: Of the group's Hessian, for R_noise.
    """
    if (nothing := _nothing(group, batches)) is not None:
        return ExcessiveRisk(*[nothing] * 10)
    own = group.gradient.double()
    steps = [_Step(group, own, batch, learning_rate) for batch in batches]
    lost = any(step.scale is None for step in steps)

    def split(of: Callable[[_Step], float]) -> Number:
        if lost:
            return Undefined("a batch has no gradient, or all of it was clipped away")
        return _mean([of(step) for step in steps])

    return ExcessiveRisk(
        nonprivate=_mean([step.plain() for step in steps]),
        clip=_mean([step.clipped() - step.plain() for step in steps]),
        noise=_noise(batches, trace, learning_rate**2 / 2),
        magnitude=split(lambda step: step.plain(step.scaled) - step.plain()),
        direction=split(lambda step: step.clipped() - step.plain(step.scaled)),
        magnitude_star=split(lambda step: step.clipped() - step.clipped(1 / step.scaled)),
        direction_star=split(lambda step: step.clipped(1 / step.scaled) - step.plain()),
        gradient_norm=float(own.norm()),
        angle_loss=split(lambda step: step.angle_loss),
        angle_loss_star=split(lambda step: step.angle_loss / step.scaled),
    )


@dataclass(frozen=True)
class RiskGapBounds:
    """Lower bounds on how much more group a pays than group b.

    Attributes:
        direction: Prop. 3's bound on ``R_dir(a) - R_dir(b)`` for convex losses (Eq. 11).
        direction_simple: The same with ``eta <= 1 / lambda`` (Eq. 12); looser.
        direction_star: Prop. 3*'s bound on ``R_dir*(a) - R_dir*(b)``, with the eigenvalues. (Eq. 18
            prints ``E[|g_B|]`` in its last term, where the proof by analogy gives ``E[|g_B|^2]``.)
        clipping: The bound on ``R_clip(a) - R_clip(b)`` of Tran et al. (proof of their Theorem 3):
            ``eta |a| (|a| (p_a - p_a^2 / 2) - 5 C / 2 - |b| (1 + p_b + p_b^2 / 2))``.
        stable: Whether the learning rate is at most one over the largest eigenvalue of any group,
            as they assume.
    """

    direction: Number
    direction_simple: Number
    direction_star: Number
    clipping: Number
    stable: bool


def risk_gap_bounds(
    first: ExcessiveRisk,
    second: ExcessiveRisk,
    batches: Sequence[Sample],
    *,
    learning_rate: float,
    eigenvalues: tuple[float, float],
    shares: tuple[float, float],
) -> RiskGapBounds:
    """The lower bounds of Props. 3 and 3* for groups a and b, and that of Tran et al.

    Args:
        first: Group a's terms.
        second: Group b's terms.
        batches: The batches that they were computed from.
        learning_rate: eta.
        eigenvalues: The largest eigenvalue of each group's Hessian.
        shares: Each group's share of the training records, p_a and p_b.
    """
    stable = learning_rate * max(eigenvalues) <= 1
    terms = [(one.gradient_norm, one.angle_loss, one.angle_loss_star) for one in (first, second)]
    for value in (value for own in terms for value in own):
        if isinstance(value, Undefined):
            return RiskGapBounds(value, value, value, value, stable)
    (a, *turns_a), (b, *turns_b) = [[_known(value) for value in own] for own in terms]
    turned, turned_star = (
        learning_rate * (a * of_a - b * of_b) for of_a, of_b in zip(turns_a, turns_b, strict=True)
    )
    clipped = _mean([_square(batch.clipped_mean) for batch in batches])
    plain = _mean([_square(batch.plain.mean) for batch in batches])
    bent = learning_rate**2 / 2 * sum(eigenvalues)
    clip = batches[0].clipping.sensitivity
    p_a, p_b = shares
    tran = a * (a * (p_a - p_a**2 / 2) - 2.5 * clip - b * (1 + p_b + p_b**2 / 2))
    return RiskGapBounds(
        direction=turned - bent * clipped,
        direction_simple=turned - learning_rate * clipped,
        direction_star=turned_star - bent * plain,
        clipping=finite_or(learning_rate * tran, "the run does not clip"),
        stable=stable,
    )


class _Step:
    """What steps along one batch's gradients do to a group's loss, to second order.

    Attributes:
        scale: ``|gbar_B| / |g_B|``; None where one of them is zero.
        angle_loss: ``|gbar_B| (cos(g_Da, g_B) - cos(g_Da, gbar_B))``.
    """

    def __init__(self, group: Hessian, own: Tensor, batch: Sample, rate: float) -> None:
        g, gbar = _flat(batch.plain.mean), _flat(batch.clipped_mean)
        self._rate = rate
        self._along = [float(torch.dot(own, v.double().cpu())) for v in (g, gbar)]
        self._curved = [float(torch.dot(v.double(), group(v).double())) for v in (g, gbar)]
        before, after = float(g.double().norm()), float(gbar.double().norm())
        self.scale = after / before if min(before, after) > 0 else None
        length = float(own.norm())
        turned = self._along[0] * self.scaled - self._along[1]
        self.angle_loss = turned / length if self.scale is not None and length > 0 else 0.0

    @property
    def scaled(self) -> float:
        """The scale, where there is one."""
        return self.scale or 1.0

    def plain(self, times: float = 1.0) -> float:
        """The change of loss by a step along ``times g_B``."""
        return self._change(0, times)

    def clipped(self, times: float = 1.0) -> float:
        """The change of loss by a step along ``times gbar_B``."""
        return self._change(1, times)

    def _change(self, which: int, times: float) -> float:
        """``-eta <g_Da, v> + eta^2 / 2 v' H v`` for v, ``times`` one of the two gradients."""
        eta = self._rate * times
        return -eta * self._along[which] + eta**2 / 2 * self._curved[which]


def _noise(batches: Sequence[Sample], trace: Trace | None, half: float) -> Number:
    one = batches[0]
    if one.noise_multiplier == 0:
        return 0.0
    if math.isinf(one.clipping.sensitivity):
        return Undefined("without a bound there is no noise to speak of")
    if trace is None:
        return Undefined("no trace of the group's Hessian was given")
    std = one.noise_multiplier * one.clipping.sensitivity / one.clipping.normaliser(one.size)
    return half * trace.value * std**2


def _nothing(group: Hessian, batches: Sequence[Sample]) -> Undefined | None:
    if group.records == 0:
        return Undefined("the group has no records")
    if not batches:
        return Undefined("no batch was given")
    return next((one for batch in batches if (one := batch.nothing) is not None), None)


def _flat(vector: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in vector.values()])


def _square(vector: Mapping[str, Tensor]) -> float:
    return float(_flat(vector).double().square().sum())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _known(value: Number) -> float:
    assert not isinstance(value, Undefined)
    return value
