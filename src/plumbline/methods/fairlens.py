"""FairLens, as published and without a guarantee.

From Tran et al., 2021; Gradient Misalignment, Alg. 4.

Its loss adds to every record's loss two whole-batch terms for two groups a and b:
``R1 = |<g_a - g_b, gbar - g>|``, with g the mean gradient of the batch or of a group and gbar the
mean of the clipped gradients, and ``R2 = (f_a (1 - f_a) + f_b (1 - f_b)) / 2``, with f the mean
prediction of a group. One record moves all of R1 and R2, and through them every record's clipped
gradient, so the noise covers only a small part of what is released: epsilon is infinite.

The derivative of R1 needs no graph of gradients. With ``u = gbar - g`` and ``w = g_a - g_b`` it is
``sign(R1) sum_i H_i v_i`` for one vector per record, since ``d <w, c_i g_i>`` is ``H_i w`` for a
record that is not clipped, and ``C H_i (w / n_i - <w, g_i> g_i / n_i^3)`` for one that is. Only
the sum is needed: networks of linear layers have it from two backward passes, others from one
product for each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from plumbline.checks import check_not_negative
from plumbline.clipping import Flat, Program
from plumbline.clipping.flat import flat_factors
from plumbline.evaluation import Batch, Chunk, Update
from plumbline.gradients import PerSampleGradients
from plumbline.gradients.random_state import RandomState
from plumbline.gradients.shifted import Shifted
from plumbline.gradients.summation import ROUNDING
from plumbline.gradients.summed_hessian import only_linear, summed_hvp
from plumbline.mechanism.release import Query
from plumbline.methods.base import GRADIENT, Method
from plumbline.methods.registry import method

_LIMIT = 32  # records at once, where Hessian products take memory for each
_FEW = 4  # records that show which kind of network it is


@method("Gradient Misalignment, Alg. 4 (Tran et al. 2021)")
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
    def one_process_reason(self) -> str | None:
        return "FairLens puts means over the whole batch into every record's loss"

    @property
    def needs_groups(self) -> bool:
        return True

    @property
    def passes(self) -> int:
        return 6  # two for the means, three for the regulariser's slope, one for the gradients

    def step(self, batch: Batch) -> Program[Update]:
        """The clipped mean of ``g_i + gamma_1 grad R1 + gamma_2 grad R2``, with noise."""
        total = batch.zeros()
        for part, gradients in self._shifted(batch):
            norms = gradients.norms()
            finite = torch.isfinite(norms) & torch.isfinite(part.own.losses)
            clipped = self.clipping.clipped_sum(
                gradients, norms.masked_fill(~finite, 0), finite, None
            )
            _add(total, clipped)
        noisy = yield Query(
            value=total,
            sensitivity=self.clipping.sensitivity,
            sigma=batch.noise_multiplier,
            name=GRADIENT,
            rounding=ROUNDING,
        )
        return {name: value / batch.expected_size for name, value in noisy.items()}

    @property
    def plain(self) -> bool:
        return False

    def before_clipping(self, batch: Batch) -> Program[list[PerSampleGradients]]:
        yield from ()
        return [gradients.built() for _, gradients in self._shifted(batch)]

    def _shifted(self, batch: Batch) -> Iterator[tuple[_Part, Shifted]]:
        """The batch's parts, with the gradients that are clipped."""
        quick = _only_linear(batch)
        # The same chunks in all passes: what is drawn for a chunk (dropout masks) is drawn for it.
        parts = _Parts(batch, None if quick else _LIMIT)
        shared = self._regulariser(batch, parts, quick=quick)
        for part in parts:
            yield part, Shifted(part.own, shared)

    def _regulariser(self, batch: Batch, parts: _Parts, *, quick: bool) -> Update:
        """``gamma_1 grad R1 + gamma_2 grad R2``; zero where a group has no record."""
        means = _Means(batch, parts, self.groups, self.clipping.sensitivity)
        shared = batch.zeros()
        if not all(means.sizes):
            return shared
        sign = float(_dot(means.apart, means.bent)) >= 0
        for part in parts:
            vectors = self._vectors(part, means)
            products = vectors.summed(part.chunk) if quick else None
            products = vectors.each(part.chunk) if products is None else products
            slopes = self._predictions_slope(part, means)
            for name, value in shared.items():
                value += products[name] * (self.weights[0] if sign else -self.weights[0])
                value += slopes[name] * self.weights[1]
        return shared

    def _vectors(self, part: _Part, means: _Means) -> _Vectors:
        own, norms = part.own, part.own.norms()
        factors = flat_factors(norms, self.clipping.sensitivity)
        along = own.dot(means.apart)
        clipped = norms > self.clipping.sensitivity
        curl = torch.where(clipped, factors * along / norms.clamp(min=1e-30).square(), 0)
        return _Vectors(
            means,
            own,
            of_bent=means.membership(part.groups, norms),
            of_apart=(factors - 1) / means.count,
            of_own=-curl / means.count,
        )

    def _predictions_slope(self, part: _Part, means: _Means) -> Update:
        """The part's share of the gradient of R2."""
        parameters = part.chunk.parameters()
        with torch.enable_grad():
            value = part.chances.new_zeros(())
            for place, group in enumerate(self.groups):
                mean, chances = means.predictions[place], part.chances[part.groups == group]
                value = value + 0.5 * (1 - 2 * mean) * chances.sum() / means.sizes[place]
            slopes = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(parameter) if slope is None else slope
            for (name, parameter), slope in zip(parameters.items(), slopes, strict=True)
        }


class _Part:
    """A chunk, with what several passes need of it computed once."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk

    @cached_property
    def own(self) -> PerSampleGradients:
        """The records' gradients."""
        return self.chunk.capture()

    @cached_property
    def chances(self) -> Tensor:
        """The second class's chance, ``[B]``, to be differentiated once."""
        with torch.enable_grad():
            return _chances(self.chunk.outputs())

    @property
    def groups(self) -> Tensor:
        """Each record's group, ``[B]``."""
        return _groups(self.chunk)


class _Parts:
    """A batch's chunks for several passes: kept where there is one, else computed every time."""

    def __init__(self, batch: Batch, limit: int | None) -> None:
        self._batch, self._limit = batch, limit
        first = list(islice(batch.chunks(limit), 2))
        self._only = _Part(first[0]) if len(first) == 1 else None

    def __iter__(self) -> Iterator[_Part]:
        if self._only is not None:
            yield self._only
            return
        for chunk in self._batch.chunks(self._limit):
            yield _Part(chunk)


@dataclass(frozen=True, eq=False)
class _Vectors:
    """``v_i = of_bent_i u + of_apart_i w + of_own_i g_i`` of a chunk's records, each ``[B]``."""

    means: _Means
    own: PerSampleGradients
    of_bent: Tensor
    of_apart: Tensor
    of_own: Tensor

    def summed(self, chunk: Chunk) -> Update | None:
        """``sum_i H_i v_i`` of a network of linear layers; None where it is not one after all."""
        shared = [(self.of_bent, self.means.bent), (self.of_apart, self.means.apart)]
        return summed_hvp(chunk.parameters(), chunk.losses, shared, self.of_own)

    def each(self, chunk: Chunk) -> Update:
        """The same of any network, with ``[B, *shape]`` for every parameter."""
        vectors = {
            name: _rows(self.of_bent, gradient) * self.means.bent[name]
            + _rows(self.of_apart, gradient) * self.means.apart[name]
            + _rows(self.of_own, gradient) * gradient
            for name, gradient in self.own.materialise().items()
        }
        return chunk.hvp(vectors).sum()


class _Means:
    """The batch's mean quantities that the regulariser is made of.

    Attributes:
        count: How many records the batch has.
        sizes: How many of them are in each group.
        apart: ``w = g_a - g_b``.
        bent: ``u = gbar - g``.
        predictions: Each group's mean prediction.
    """

    def __init__(self, batch: Batch, parts: _Parts, groups: tuple[int, int], clip: float) -> None:
        self._groups = groups
        self.count, self.sizes = 0, [0, 0]
        predictions = [0.0, 0.0]
        bent = batch.zeros()
        sums = [batch.zeros(), batch.zeros()]
        for part in parts:
            _refuse_undeclared(part.groups, groups)
            own, chances = part.own, part.chances.detach()
            factors = flat_factors(own.norms(), clip)
            _add(bent, own.sum(factors - 1))
            self.count += own.records
            for place, group in enumerate(groups):
                members = part.groups == group
                self.sizes[place] += int(members.sum())
                predictions[place] += float(chances[members].sum())
                _add(sums[place], own.sum(members.to(factors)))
        sizes = [max(1, size) for size in self.sizes]
        self.predictions = [total / size for total, size in zip(predictions, sizes, strict=True)]
        self.bent = {name: value / max(1, self.count) for name, value in bent.items()}
        self.apart = {name: sums[0][name] / sizes[0] - sums[1][name] / sizes[1] for name in sums[0]}

    def membership(self, own: Tensor, like: Tensor) -> Tensor:
        """``1 / |B_a|`` for records of the first group, ``-1 / |B_b|`` for the second, ``[B]``."""
        first, second = (own == group for group in self._groups)
        return first.to(like) / self.sizes[0] - second.to(like) / self.sizes[1]


def _only_linear(batch: Batch) -> bool:
    """Whether the network is of linear layers, as far as a few records show."""
    chunk = next(batch.chunks(_FEW), None)
    if chunk is None:
        return True
    _groups(chunk)
    parameters = chunk.parameters()
    now = RandomState(parameters.values())
    try:
        return only_linear(parameters, chunk.losses)
    finally:
        now.restore()  # as if nothing had been drawn


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


def _refuse_undeclared(own: Tensor, groups: tuple[int, int]) -> None:
    if bool(((own != groups[0]) & (own != groups[1])).any()):
        raise ValueError(
            "sensitive_features has a value that is not one of the two groups "
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
