"""FairLens (Tran et al., 2021; paper 004, Alg. 4), as published and without a guarantee.

Its loss adds to every record's loss two whole-batch terms for two groups a and b:
``R1 = |<g_a - g_b, gbar - g>|``, with g the mean gradient of the batch or of a group and gbar the
mean of the clipped gradients, and ``R2 = (f_a (1 - f_a) + f_b (1 - f_b)) / 2``, with f the mean
prediction of a group. One record moves all of R1 and R2, and through them every record's clipped
gradient, so the noise covers only a small part of what is released: epsilon is infinite.

The derivative of R1 needs no graph of gradients. With ``u = gbar - g`` and ``w = g_a - g_b`` it is
``sign(R1) sum_i H_i v_i`` for one vector per record, since ``d <w, c_i g_i>`` is ``H_i w`` for a
record that is not clipped, and ``C H_i (w / n_i - <w, g_i> g_i / n_i^3)`` for one that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plumbline.checks import check_not_negative
from plumbline.clipping import Flat, Program
from plumbline.clipping.flat import flat_factors
from plumbline.evaluation import Batch, Chunk, Update
from plumbline.gradients import PerSampleGradients, combine
from plumbline.mechanism.release import Query
from plumbline.methods.method import GRADIENT, Method
from plumbline.methods.registry import named

_LIMIT = 32  # records at once: Hessian products take memory for each


@named("004, Alg. 4 (Tran et al. 2021)")
def fairlens(
    clip: float = 1.0, groups: Sequence[int] = (0, 1), weights: tuple[float, float] = (1.0, 1.0)
) -> Method:
    """FairLens for two groups and two classes: regularised towards equal excessive risk.

    Args:
        clip: The bound of flat clipping.
        groups: The two groups' values in ``sensitive_features``.
        weights: How much R1 and R2 count, gamma_1 and gamma_2.
    """
    if len(groups) != 2 or groups[0] == groups[1]:
        raise ValueError(f"groups is {tuple(groups)}; FairLens is defined for two groups.")
    for weight in weights:
        check_not_negative("a weight", weight)
    return _FairLens("fairlens", (), Flat(clip), groups=(groups[0], groups[1]), weights=weights)


@dataclass
class _FairLens(Method):
    groups: tuple[int, int] = (0, 1)
    weights: tuple[float, float] = (1.0, 1.0)

    @property
    def unbounded_reason(self) -> str | None:
        return (
            "FairLens puts whole-batch quantities into every record's loss, so that one record "
            "moves every summand and the noise does not cover it"
        )

    @property
    def needs_groups(self) -> bool:
        return True

    @property
    def passes(self) -> int:
        return 6  # two for the means, three for the regulariser's slope, one for the gradients

    def step(self, batch: Batch) -> Program[Update]:
        """The clipped mean of ``g_i + gamma_1 grad R1 + gamma_2 grad R2``, with noise."""
        shared = self._regulariser(batch)
        total = batch.zeros()
        for chunk in batch.chunks(_LIMIT):
            own = chunk.capture()
            repeated = PerSampleGradients.of(
                {name: value.expand(own.records, *value.shape) for name, value in shared.items()},
                own.losses,
            )
            gradients = combine([own, repeated], [1.0, 1.0])
            norms = gradients.norms()
            finite = torch.isfinite(norms) & torch.isfinite(gradients.losses)
            clipped = self.clipping.clipped_sum(
                gradients, norms.masked_fill(~finite, 0), finite, None
            )
            for name, value in clipped.items():
                total[name] += value
        noisy = yield Query(
            value=total,
            sensitivity=self.clipping.sensitivity,
            sigma=batch.noise_multiplier,
            name=GRADIENT,
        )
        return {name: value / batch.expected_size for name, value in noisy.items()}

    def _regulariser(self, batch: Batch) -> Update:
        """``gamma_1 grad R1 + gamma_2 grad R2``; zero where a group has no record."""
        means = _Means(batch, self.groups, self.clipping.sensitivity)
        shared = batch.zeros()
        if not all(means.sizes):
            return shared
        sign = float(_dot(means.apart, means.bent)) >= 0
        for chunk in batch.chunks(_LIMIT):
            products = chunk.hvp(self._vectors(chunk, means)).sum()
            slopes = self._predictions_slope(chunk, means)
            for name, value in shared.items():
                value += products[name] * (self.weights[0] if sign else -self.weights[0])
                value += slopes[name] * self.weights[1]
        return shared

    def _vectors(self, chunk: Chunk, means: _Means) -> dict[str, Tensor]:
        """``v_i`` of each record, ``[B, *shape]`` by parameter."""
        own = chunk.capture()
        norms = own.norms()
        factors = flat_factors(norms, self.clipping.sensitivity)
        along = own.dot(means.apart)
        clipped = norms > self.clipping.sensitivity
        curl = torch.where(clipped, factors * along / norms.clamp(min=1e-30).square(), 0)
        membership = means.membership(chunk)
        gradients = own.materialise()
        return {
            name: _rows(membership, gradient) * means.bent[name]
            + _rows((factors - 1) / means.count, gradient) * means.apart[name]
            - _rows(curl / means.count, gradient) * gradient
            for name, gradient in gradients.items()
        }

    def _predictions_slope(self, chunk: Chunk, means: _Means) -> Update:
        """The chunk's share of the gradient of R2."""
        parameters = chunk.parameters()
        with torch.enable_grad():
            chances = _chances(chunk.outputs())
            value = chances.new_zeros(())
            for place, group in enumerate(self.groups):
                mean = means.predictions[place]
                members = _groups(chunk) == group
                value = value + 0.5 * (1 - 2 * mean) * chances[members].sum() / means.sizes[place]
            slopes = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(parameter) if slope is None else slope
            for (name, parameter), slope in zip(parameters.items(), slopes, strict=True)
        }


class _Means:
    """The batch's mean quantities that the regulariser is made of.

    Attributes:
        count: How many records the batch has.
        sizes: How many of them are in each group.
        apart: ``w = g_a - g_b``.
        bent: ``u = gbar - g``.
        predictions: Each group's mean prediction.
    """

    def __init__(self, batch: Batch, groups: tuple[int, int], clip: float) -> None:
        self._groups = groups
        self.count, self.sizes = 0, [0, 0]
        predictions = [0.0, 0.0]
        bent = batch.zeros()
        sums = [batch.zeros(), batch.zeros()]
        for chunk in batch.chunks(_LIMIT):
            _refuse_undeclared(chunk, groups)
            own = chunk.capture()
            factors = flat_factors(own.norms(), clip)
            _add(bent, own.sum(factors - 1))
            self.count += own.records
            with torch.no_grad():
                chances = _chances(chunk.outputs())
            for place, group in enumerate(groups):
                members = _groups(chunk) == group
                self.sizes[place] += int(members.sum())
                predictions[place] += float(chances[members].sum())
                _add(sums[place], own.sum(members.to(factors)))
        sizes = [max(1, size) for size in self.sizes]
        self.predictions = [total / size for total, size in zip(predictions, sizes, strict=True)]
        self.bent = {name: value / max(1, self.count) for name, value in bent.items()}
        self.apart = {name: sums[0][name] / sizes[0] - sums[1][name] / sizes[1] for name in sums[0]}

    def membership(self, chunk: Chunk) -> Tensor:
        """``1 / |B_a|`` for records of the first group, ``-1 / |B_b|`` for the second, ``[B]``."""
        first, second = (_groups(chunk) == group for group in self._groups)
        return first.float() / self.sizes[0] - second.float() / self.sizes[1]


def _groups(chunk: Chunk) -> Tensor:
    if chunk.groups is None:
        raise ValueError(
            "FairLens needs the group of each record: give sensitive_features to make_private."
        )
    if chunk.units != chunk.records:
        raise ValueError(
            "FairLens is defined for single records, each in a group of its own, not for users "
            "with several. Leave user_ids out, or use another method."
        )
    return chunk.groups


def _refuse_undeclared(chunk: Chunk, groups: tuple[int, int]) -> None:
    own = _groups(chunk)
    other = own[(own != groups[0]) & (own != groups[1])]
    if len(other):
        raise ValueError(
            f"sensitive_features has the value {int(other[0])}, which is not one of the two groups "
            f"{list(groups)} of FairLens. Give records of these two, or declare others: "
            "groups=(...)."
        )


def _chances(outputs: Any) -> Tensor:
    """The second class's chance, ``[B]``, from logits ``[B, 2]``, ``[B, 1]`` or ``[B]``."""
    if not isinstance(outputs, Tensor) or (outputs.dim() == 2 and outputs.shape[1] > 2):
        raise ValueError("FairLens is defined for two classes: the model must give two logits.")
    if outputs.dim() == 2 and outputs.shape[1] == 2:
        return outputs.softmax(1)[:, 1]
    return outputs.reshape(len(outputs)).sigmoid()


def _add(total: Update, part: Update) -> None:
    for name, value in part.items():
        total[name] += value


def _dot(first: Update, second: Update) -> Tensor:
    return torch.stack([(first[name] * second[name]).sum() for name in first]).sum()


def _rows(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like).reshape(-1, *(1,) * (like.dim() - 1))
