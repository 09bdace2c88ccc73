"""The papers' methods by name, each a few lines that compose evaluations and a clipping.

Defaults are the papers' settings, where these are the same for all of their data sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from plumbline.augmentations import Chain, Flip, Shift
from plumbline.clipping import (
    Automatic,
    Averaged,
    Flat,
    Global,
    GlobalAdapt,
    Normalised,
    PerGroup,
    PerLayer,
    QuantileAdaptive,
)
from plumbline.evaluation import (
    Bam,
    BamExact,
    BatchClipping,
    DpSam,
    DpSat,
    DpSatMomentum,
    InnerMomentum,
    OuterMomentum,
    PreClipNoise,
    RecordMomentum,
    Views,
)
from plumbline.evaluation.bias_aware import Radius
from plumbline.evaluation.seen import Field
from plumbline.evaluation.views import Augment
from plumbline.methods.base import Method
from plumbline.methods.composing import compose
from plumbline.methods.registry import method


@method("Abadi et al. 2016, Alg. 1")
def dpsgd(clip: float = 1.0) -> Method:
    """DP-SGD: flat clipping of the ordinary gradient."""
    return compose(clipping=Flat(clip), name="dpsgd")


@method("Clipping Bias Reduction, Eq. 8")
def normalised() -> Method:
    """Every gradient scaled to norm one."""
    return compose(clipping=Normalised(), name="normalised")


@method("Bu et al. 2022, AUTO-S", clip=False, search=Automatic.search)
def automatic(clip: float = 1.0, stability: float = 0.01) -> Method:
    """Every gradient scaled to nearly ``clip``, short ones less."""
    return compose(clipping=Automatic(clip, stability), name="automatic")


@method("per-layer clipping")
def per_layer(clip: float | Mapping[str, float] = 1.0) -> Method:
    """Every layer's gradient clipped by itself, with one bound for all or one for each."""
    return compose(clipping=PerLayer(clip), name="per_layer")


@method("Andrew et al. 2021, Alg. 1", search=QuantileAdaptive.search)
def adaptive(
    initial: float = 1.0, quantile: float = 0.5, rate: float = 0.2, count_noise: float = 10.0
) -> Method:
    """Flat clipping at a bound that follows a private quantile of the norms."""
    clipping = QuantileAdaptive(initial, quantile, rate, count_noise)
    return compose(clipping=clipping, name="adaptive")


@method("Gradient Misalignment, Alg. 2 (Bu et al. 2021)", clip=False, search=Global.search)
def global_scaling(clip: float = 1.0, bound: float = 50.0) -> Method:
    """DPSGD-Global: one factor for all records within the bound, the others dropped."""
    return compose(clipping=Global(clip, bound), name="global_scaling")


@method("Gradient Misalignment, Alg. 2", clip=False, search=GlobalAdapt.search)
def global_adapt(
    clip: float = 1.0,
    initial: float = 50.0,
    rate: float = 0.1,
    tolerance: float = 1.0,
    count_noise: float = 10.0,
) -> Method:
    """DPSGD-Global-Adapt: one factor for records within a bound that adapts, clipping beyond."""
    clipping = GlobalAdapt(clip, initial, rate, tolerance, count_noise)
    return compose(clipping=clipping, name="global_adapt")


@method("Gradient Misalignment, Alg. 3 (Xu et al. 2021)")
def dpsgd_f(
    clip: float = 1.0,
    groups: Sequence[int] = (0, 1),
    count_ratio: float = 10.0,
    form: Literal["released", "paper"] = "released",
) -> Method:
    """DPSGD-F: a bound for each group, larger where many gradients are long."""
    return compose(clipping=PerGroup(clip, groups, count_ratio, form), name="dpsgd_f")


@method("Sharpness-Aware Training, Eq. 8 and 9", search=DpSam.search)
def dp_sam(
    clip: float = 0.1, radius: float = 0.05, accounting: Literal["exact", "paper"] = "exact"
) -> Method:
    """DP-SAM: a noisy gradient finds the way uphill, a second one is taken there.

    Args:
        clip: The bound of flat clipping.
        radius: How far uphill, rho.
        accounting: "paper" charges (2 epsilon, 2 delta), as Thm 4.1 does, where that is more than
            the exact cost; to reproduce its tables only. There it needs up to twice the noise of
            DP-SGD, and 1.414 times is enough. Where it is less, the theorem does not hold.
    """
    if accounting not in ("exact", "paper"):
        raise ValueError(f"accounting is {accounting!r}; it must be 'exact' or 'paper'.")
    method = compose(evaluation=DpSam(radius), clipping=Flat(clip), name="dp_sam")
    method.composition = "basic" if accounting == "paper" else "joint"
    return method


@method("Sharpness-Aware Training, Alg. 1", search=DpSat.search)
def dp_sat(clip: float = 0.1, radius: float = 0.05, as_released: bool = False) -> Method:
    """DP-SAT: uphill along the previous released gradient, at no further cost."""
    return compose(evaluation=DpSat(radius, as_released), clipping=Flat(clip), name="dp_sat")


@method("Sharpness-Aware Training, Eq. 15", search=DpSatMomentum.search)
def dp_sat_momentum(clip: float = 0.1, radius: float = 0.5, decay: float = 0.9) -> Method:
    """DP-SAT along a decayed sum of all released gradients."""
    rule = DpSatMomentum(radius=radius, decay=decay)
    return compose(evaluation=rule, clipping=Flat(clip), name="dp_sat_momentum")


@method("Bias-Aware Minimisation, Eq. 14", search=Bam.search)
def bam(clip: float = 1.0, radius: Radius = 0.02) -> Method:
    """BAM: each record's gradient at its own weights, moved up its own gradient."""
    return compose(evaluation=Bam(radius), clipping=Flat(clip), name="bam")


@method("Bias-Aware Minimisation, Eq. 13", search=BamExact.search)
def bam_exact(clip: float = 1.0, radius: Radius = 0.02) -> Method:
    """BAM with the exact Hessian-vector product of each record."""
    return compose(evaluation=BamExact(radius), clipping=Flat(clip), name="bam_exact")


@method(
    "Clipping Bias Reduction, Alg. 2, Eq. 13 and 14",
    search={"inner": InnerMomentum.search["decay"], "outer": OuterMomentum.search["decay"]},
)
def inner_outer(
    clip: float | None = 5.0, length: int = 2, inner: float = 0.08, outer: float = 0.9
) -> Method:
    """Inner momentum over the last iterates before clipping, outer momentum after the release.

    Args:
        clip: The bound of flat clipping; None normalises instead, as Alg. 2 prints.
        length: How many past iterates take part, K0.
        inner: The decay of the inner momentum, gamma0.
        outer: The decay of the outer momentum. Use an optimizer without momentum of its own.
    """
    rules = [InnerMomentum(length, inner), OuterMomentum(outer)]
    clipping = Normalised() if clip is None else Flat(clip)
    return compose(evaluation=rules, clipping=clipping, name="inner_outer")


@method("Clipping Bias Reduction, Alg. 1", search=RecordMomentum.search)
def dp_gd_momentum(rate: float = 0.1, clip: float | None = None) -> Method:
    """DP-GD with a momentum for every record, for full batches of few records.

    Args:
        rate: gamma.
        clip: The bound of flat clipping; None normalises, as the paper does.
    """
    clipping = Normalised() if clip is None else Flat(clip)
    return compose(evaluation=RecordMomentum(rate), clipping=clipping, name="dp_gd_momentum")


@method("De et al. 2022; Clipping Bias Reduction, section 6")
def self_augmented(
    clip: float = 1.0, views: int = 8, augment: Augment | None = None, inputs: Field = 0
) -> Method:
    """The mean gradient over random views of each record, clipped as one.

    Args:
        clip: The bound of flat clipping.
        views: How many views, K.
        augment: Makes them; by default shifts by up to 4 pixels and flips.
        inputs: Where a batch has the images.
    """
    augment = Chain(Shift(4), Flip()) if augment is None else augment
    rule = Views(augment, views, inputs)
    return compose(evaluation=rule, clipping=Flat(clip), name="self_augmented")


@method("Clipping Bias Reduction, Alg. 3", example=lambda: {"public": torch.zeros(4, 1)})
def batch_clipping(
    public: Tensor, companions: int = 3, clip: float | None = None, inputs: Field = 0
) -> Method:
    """BatchClipping: BatchNorm over a record and public companions. Predict with ``predict``.

    Args:
        public: The public inputs, ``[P, ...]``.
        companions: How many accompany a record, p.
        clip: The bound of flat clipping; None normalises, as the paper does.
        inputs: Where a batch has the inputs.
    """
    clipping = Normalised() if clip is None else Flat(clip)
    rule = BatchClipping(public, companions, inputs)
    return compose(evaluation=rule, clipping=clipping, name="batch_clipping")


@method("Geometric Perspective, Eq. 11", search=PreClipNoise.search)
def pre_clip_noise(clip: float = 1.0, scale: float = 5.0) -> Method:
    """Gaussian noise on each record's gradient before it is clipped, against clipping's bias."""
    return compose(evaluation=PreClipNoise(scale), clipping=Flat(clip), name="pre_clip_noise")


@method("Clipping Bias Reduction, section 3.3", search=Averaged.search)
def averaged(clip: float = 1.0, size: int = 4) -> Method:
    """Averages over buckets of about ``size`` records, clipped: sensitivity twice the bound."""
    return compose(clipping=Averaged(clip, size), name="averaged")
