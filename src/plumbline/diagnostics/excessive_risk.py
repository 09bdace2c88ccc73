"""What a private step costs each group (paper 004, Props. 1 to 3; Tran et al., 2021).

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
from collections.abc import Mapping, Sequence
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
        return ExcessiveRisk(*[nothing] * 9)
    own = group.gradient.double()
    terms = [_Terms(group, own, batch) for batch in batches]
    eta, half = learning_rate, learning_rate**2 / 2
    lost = any(term.scale is None for term in terms)

    def split(values: Sequence[float]) -> Number:
        if lost:
            return Undefined("a batch has no gradient, or all of it was clipped away")
        return _mean(values)

    return ExcessiveRisk(
        nonprivate=_mean([-eta * t.along + half * t.curved for t in terms]),
        clip=_mean([eta * t.lost + half * (t.curved_clipped - t.curved) for t in terms]),
        noise=_noise(batches, trace, half),
        magnitude=split([_magnitude(t, eta, half) for t in terms]),
        direction=split([_direction(t, eta, half) for t in terms]),
        magnitude_star=split([_magnitude_star(t, eta, half) for t in terms]),
        direction_star=split([_direction_star(t, eta, half) for t in terms]),
        gradient_norm=float(own.norm()),
        angle_loss=split([t.angle_loss for t in terms]),
    )


@dataclass(frozen=True)
class RiskGapBounds:
    """Lower bounds on how much more group a pays than group b.

    Attributes:
        direction: Prop. 3's bound on ``R_dir(a) - R_dir(b)`` for convex losses (Eq. 11).
        direction_simple: The same with ``eta <= 1 / lambda`` (Eq. 12); looser.
        clipping: The bound on ``R_clip(a) - R_clip(b)`` of Tran et al. (proof of their Theorem 3):
            ``eta |a| (|a| (p_a - p_a^2 / 2) - 5 C / 2 - |b| (1 + p_b + p_b^2 / 2))``.
        stable: Whether the learning rate is at most one over the largest eigenvalue of any group,
            as they assume.
    """

    direction: Number
    direction_simple: Number
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
    """Prop. 3's lower bounds for groups a and b, and that of Tran et al.

    Args:
        first: Group a's terms.
        second: Group b's terms.
        batches: The batches that they were computed from.
        learning_rate: eta.
        eigenvalues: The largest eigenvalue of each group's Hessian.
        shares: Each group's share of the training records, p_a and p_b.
    """
    stable = learning_rate * max(eigenvalues) <= 1
    sizes = [(one.gradient_norm, one.angle_loss) for one in (first, second)]
    for pair in sizes:
        for value in pair:
            if isinstance(value, Undefined):
                return RiskGapBounds(value, value, value, stable)
    (a, turned_a), (b, turned_b) = [(_known(size), _known(turn)) for size, turn in sizes]
    clipped = _mean([float(_flat(batch.clipped_mean).double().square().sum()) for batch in batches])
    turned = learning_rate * (a * turned_a - b * turned_b)
    curved = learning_rate**2 / 2 * sum(eigenvalues) * clipped
    clip = batches[0].clipping.sensitivity
    p_a, p_b = shares
    tran = a * (a * (p_a - p_a**2 / 2) - 2.5 * clip - b * (1 + p_b + p_b**2 / 2))
    return RiskGapBounds(
        direction=turned - curved,
        direction_simple=turned - learning_rate * clipped,
        clipping=finite_or(learning_rate * tran, "the run does not clip"),
        stable=stable,
    )


class _Terms:
    """The scalars of one batch and group that all terms are made of.

    Attributes:
        along: ``<g_Da, g_B>``.
        lost: ``<g_Da, g_B - gbar_B>``.
        curved: ``g_B' H g_B``.
        curved_clipped: ``gbar_B' H gbar_B``.
        scale: ``|gbar_B| / |g_B|``; None where one of them is zero.
        angle_loss: ``|gbar_B| (cos(g_Da, g_B) - cos(g_Da, gbar_B))``.
    """

    def __init__(self, group: Hessian, own: Tensor, batch: Sample) -> None:
        g, gbar = _flat(batch.plain.mean), _flat(batch.clipped_mean)
        along, along_clipped = (float(torch.dot(own, v.double().cpu())) for v in (g, gbar))
        self.along = along
        self.lost = along - along_clipped
        self.curved = _quadratic(group, g)
        self.curved_clipped = _quadratic(group, gbar)
        sizes = float(g.double().norm()), float(gbar.double().norm())
        self.scale = sizes[1] / sizes[0] if min(sizes) > 0 else None
        self.angle_loss = 0.0
        if self.scale is not None and float(own.norm()) > 0:
            self.angle_loss = (along * self.scale - along_clipped) / float(own.norm())


def _magnitude(t: _Terms, eta: float, half: float) -> float:
    scale = t.scale or 1.0
    return eta * (1 - scale) * t.along + half * (scale**2 - 1) * t.curved


def _direction(t: _Terms, eta: float, half: float) -> float:
    scale = t.scale or 1.0
    turned = scale * t.along - (t.along - t.lost)
    return eta * turned + half * (t.curved_clipped - scale**2 * t.curved)


def _magnitude_star(t: _Terms, eta: float, half: float) -> float:
    scale = t.scale or 1.0
    return eta * (1 / scale - 1) * (t.along - t.lost) + half * (1 - scale**-2) * t.curved_clipped


def _direction_star(t: _Terms, eta: float, half: float) -> float:
    scale = t.scale or 1.0
    turned = t.along - (t.along - t.lost) / scale
    return eta * turned + half * (t.curved_clipped / scale**2 - t.curved)


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


def _quadratic(group: Hessian, vector: Tensor) -> float:
    return float(torch.dot(vector.double(), group(vector).double()))


def _flat(vector: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in vector.values()])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _known(value: Number) -> float:
    assert not isinstance(value, Undefined)
    return value
