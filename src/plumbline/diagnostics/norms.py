"""How long the gradients are that the run clips.

From Sharpness-Aware Training, Fig. 3; Clipping Bias Reduction, Fig. 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.diagnostics.base import Sample, norm, ratio
from plumbline.results import Number, Undefined

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class NormDistribution:
    """The distribution of the gradient norms, before clipping.

    Attributes:
        quantiles: By share of records, for ``QUANTILES``.
        mean: The mean norm.
        largest: The largest norm.
        clipped: The share of records that the run clips: scales down further than short ones.
        norm_of_mean: The norm of the mean gradient.
        polarisation: The 75% quantile divided by the 25% quantile.
        by_group: The median norm of each group, by its value.
        clipped_by_group: The share that is clipped in each group.
        not_finite: How many records have no finite gradient; they are left out.
    """

    quantiles: dict[float, Number]
    mean: Number
    largest: Number
    clipped: Number
    norm_of_mean: Number
    polarisation: Number
    by_group: dict[int, Number]
    clipped_by_group: dict[int, Number]
    not_finite: int


def norms(sample: Sample) -> NormDistribution:
    """The distribution of the norms; a group is one of the values that occur."""
    lost = sample.records - sample.used
    if (nothing := sample.nothing) is not None:
        unknown: dict[float, Number] = dict.fromkeys(QUANTILES, nothing)
        return NormDistribution(unknown, nothing, nothing, nothing, nothing, nothing, {}, {}, lost)
    values = sample.norms[sample.finite].double().cpu()
    found = torch.quantile(values, torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
    quantiles: dict[float, Number] = dict(zip(QUANTILES, found, strict=True))
    clipped = sample.clipped
    medians: dict[int, Number] = {}
    shares: dict[int, Number] = {}
    for group, members in sample.members.items():
        own = sample.norms[members].double()
        empty = Undefined(f"group {group} has no finite gradient")
        medians[group] = float(own.quantile(0.5)) if len(own) else empty
        shares[group] = _share(clipped, members) if len(own) else empty
    return NormDistribution(
        quantiles=quantiles,
        mean=float(values.mean()),
        largest=float(values.max()),
        clipped=_share(clipped, sample.finite),
        norm_of_mean=norm(sample.mean),
        polarisation=ratio(found[3], found[1], "a quarter of the gradients are zero"),
        by_group=medians,
        clipped_by_group=shares,
        not_finite=lost,
    )


def _share(clipped: Tensor | Undefined, members: Tensor) -> Number:
    if isinstance(clipped, Undefined):
        return clipped
    return float(clipped[members].double().mean())
