"""Per-record gradients plus one shared vector: ``g_i + r``, without building them.

``|g_i + r|^2 = |g_i|^2 + 2 <g_i, r> + |r|^2`` and ``sum_i w_i (g_i + r) = sum_i w_i g_i + (sum_i
w_i) r``. Norms of records that nearly cancel with r are computed from the sum itself. Unlike those
of ``PerSampleGradients`` they may be under-stated by rounding: not for methods with a guarantee.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from plumbline.gradients.per_sample import PerSampleGradients

_CANCELS = 1 / 8
"""Norms below this fraction of ``|g_i| + |r|`` are computed from the sum itself."""

_AT_ONCE = 32


class Shifted:
    """The gradients ``g_1 + r .. g_B + r`` of a batch's records, by parameter name."""

    def __init__(self, own: PerSampleGradients, shift: Mapping[str, Tensor]) -> None:
        self._own = own
        self._shift = shift

    @property
    def names(self) -> list[str]:
        """The parameters' names, in the model's order."""
        return self._own.names

    def norms(self, names: Collection[str] | None = None) -> Tensor:
        """Each record's L2 norm, ``[B]``: over all parameters, or ``names``."""
        chosen = self.names if names is None else list(names)
        shift = {name: self._shift[name] for name in chosen}
        of_name = self._own.square_norms()
        squares = torch.stack([of_name[name] for name in chosen]).sum(0)
        length = torch.stack([value.to(squares).square().sum() for value in shift.values()]).sum()
        total = squares + 2 * self._own.dot(shift).to(squares) + length
        norms = total.clamp(min=0).sqrt().to(self._own.dtype)
        cancels = total < (_CANCELS * (squares.sqrt() + length.sqrt())).square()
        for index in torch.split(cancels.nonzero()[:, 0], _AT_ONCE):
            norms[index] = self._few(index, shift)
        return norms

    def sum(self, weights: Tensor | Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """``sum_i weights_i (g_i + r)`` by parameter name; weights ``[B]``, for all or by name.

        If all weights are zero, nothing is added, even when r is not finite.
        """
        sums = self._own.sum(weights)
        for name, value in sums.items():
            given = weights[name] if isinstance(weights, Mapping) else weights
            if given is None:
                sums[name] = value + self._own.records * self._shift[name]
            elif bool((given != 0).any()):
                sums[name] = value + given.sum().to(value) * self._shift[name]
        return sums

    def built(self) -> PerSampleGradients:
        """The same with every sum built, for diagnostics: it takes the memory of a dense batch."""
        rows = {name: r.expand(self._own.records, *r.shape) for name, r in self._shift.items()}
        shift = PerSampleGradients.of(rows, self._own.losses)
        return PerSampleGradients.combine([self._own, shift], [1.0, 1.0])

    def _few(self, index: Tensor, shift: Mapping[str, Tensor]) -> Tensor:
        own = self._own.select(index).materialise()
        moved = {name: own[name] + value for name, value in shift.items()}
        return PerSampleGradients.of(moved, self._own.losses[index]).norms()
