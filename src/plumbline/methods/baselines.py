"""Methods without a guarantee, to compare with: they show what clipping or noise does by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from plumbline.clipping import Flat, GroupBatchNorm, Program, Unclipped
from plumbline.evaluation import Batch, DpSam, GradientNormPenalty, Update
from plumbline.mechanism.release import GaussianQuery
from plumbline.methods.base import GRADIENT, GradientBatch, Method
from plumbline.methods.composing import compose
from plumbline.methods.registry import method

_CLIPPED = "clipped gradient"


@method("SGD")
def nonprivate() -> Method:
    """Neither clipping nor noise."""
    return compose(clipping=Unclipped(), name="nonprivate", noisy=False)


@method("Sharpness-Aware Training, Figs. 5 and 7 (Foret et al. 2021)", search=DpSam.search)
def nonprivate_sam(radius: float = 0.05) -> Method:
    """Sharpness-aware minimisation: the gradient uphill along the batch's own gradient."""
    rule = DpSam(radius)
    return compose(evaluation=rule, clipping=Unclipped(), name="nonprivate_sam", noisy=False)


@method(
    "Bias-Aware Minimisation, Eq. 12 and 15 (Zhao et al. 2022)", search=GradientNormPenalty.search
)
def gradient_norm_penalty(penalty: float = 0.05) -> Method:
    """The loss plus ``penalty`` times the norm of the batch's mean gradient."""
    rule = GradientNormPenalty(penalty)
    return compose(evaluation=rule, clipping=Unclipped(), name="gradient_norm_penalty", noisy=False)


@method("clipped SGD")
def clipped_only(clip: float = 1.0) -> Method:
    """Clipping without noise: what clipping alone does."""
    return compose(clipping=Flat(clip), name="clipped_only", noisy=False)


@method("Clipping Bias Reduction, Fig. 8", search=GroupBatchNorm.search)
def group_batchnorm(clip: float = 1.0, size: int = 4) -> Method:
    """Clipped averages over groups of records that go through BatchNorm together, no noise."""
    return _ExactGroups("group_batchnorm", (), GroupBatchNorm(clip, size), noisy=False)


@method("Gradient Misalignment, Table 1")
def direction_only(clip: float = 1.0) -> Method:
    """``|gbar| / |g| g``: the true gradient's direction with the clipped one's length."""
    return _Recombined("direction_only", (), Flat(clip), noisy=False)


@method("Gradient Misalignment, Table 1")
def magnitude_only(clip: float = 1.0) -> Method:
    """``|g| / |gbar| gbar``: the true gradient's length with the clipped one's direction."""
    return _Recombined("magnitude_only", (), Flat(clip), noisy=False)


class _ExactGroups(Method):
    """The batch cut into groups of p at random; the last group takes what is left as well.

    One record more shifts the others: nothing bounds what it changes.
    """

    clipping: GroupBatchNorm

    def _bucketed(self, batch: Batch) -> Batch:
        size = self.clipping.size
        place = batch.draws("groups").seeds().argsort().argsort()
        groups = max(1, len(place) // size)
        return batch.bucketed((place // size).clamp(max=groups - 1), together=True)


class _Recombined(Method):
    """The direction of one of the true and the clipped mean gradient, the length of the other."""

    @property
    def reads_released(self) -> bool:
        return True

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        return tuple(
            GaussianQuery(name=name, sensitivity=1.0, noise_multiplier=0.0)
            for name in (_CLIPPED, GRADIENT)
        )

    def step(self, batch: Batch) -> Program[Update]:
        records = GradientBatch(batch, (), noisy=False)
        clipped = yield from self._mean(records, _CLIPPED)
        true = yield from self._mean(records, GRADIENT, Unclipped())
        if self.name == "direction_only":
            return _with_length_of(clipped, true)
        return _with_length_of(true, clipped)


def _with_length_of(length: Update, direction: Update) -> Update:
    size = float(_norm(direction))
    scale = float(_norm(length)) / size if size else 0.0
    return {name: value * scale for name, value in direction.items()}


def _norm(vector: Update) -> Tensor:
    return torch.stack([value.double().square().sum() for value in vector.values()]).sum().sqrt()
