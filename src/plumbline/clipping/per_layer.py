"""Per-layer clipping: factor ``min(1, C_l / n_il)`` in layer l, sensitivity ``sqrt(sum C_l^2)``.

A layer is a module with parameters of its own (its weight and bias are clipped together).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.checks import check_positive
from plumbline.clipping.base import Clipping, Gradients, below, clipping
from plumbline.clipping.flat import flat_factors


@clipping
@dataclass(frozen=True)
class PerLayer(Clipping):
    """Clips the gradient of each layer by itself.

    Attributes:
        clip: One bound for all layers together, shared equally: each has ``clip / sqrt(layers)``.
            Or a bound for each, by the module's name (empty for parameters of the model itself).
    """

    clip: float | Mapping[str, float] = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.clip, Mapping):
            if not self.clip:
                raise ValueError("clip is an empty mapping; give a bound for each layer.")
            for layer, bound in self.clip.items():
                check_positive(f"clip[{layer!r}]", bound)
        else:
            check_positive("clip", self.clip)

    @property
    def sensitivity(self) -> float:
        if isinstance(self.clip, Mapping):
            return math.hypot(*self.clip.values())
        return self.clip

    def factors(self, norms: Tensor, groups: Tensor | None = None) -> Tensor:
        raise TypeError("PerLayer has a factor for each layer; use clipped_sum.")

    def clipped_sum(
        self, gradients: Gradients, norms: Tensor, finite: Tensor, groups: Tensor | None
    ) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {}
        for names, factors in self._by_layer(gradients):
            weights |= dict.fromkeys(names, factors.masked_fill(~finite, 0))
        return gradients.sum(weights)

    def is_clipped(
        self, gradients: Gradients, norms: Tensor, groups: Tensor | None = None
    ) -> Tensor:
        return torch.stack([below(factors, 1.0) for _, factors in self._by_layer(gradients)]).any(0)

    def _by_layer(self, gradients: Gradients) -> Iterator[tuple[list[str], Tensor]]:
        """Each layer's parameters, and the records' factors in it, ``[B]``."""
        layers: dict[str, list[str]] = {}
        for name in gradients.names:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        bounds = self._bounds(list(layers))
        for layer, names in layers.items():
            yield names, flat_factors(gradients.norms(names), bounds[layer])

    def _bounds(self, layers: list[str]) -> Mapping[str, float]:
        if not isinstance(self.clip, Mapping):
            return dict.fromkeys(layers, self.clip / math.sqrt(len(layers)))
        if set(layers) != set(self.clip):
            different = sorted(set(layers) ^ set(self.clip))
            raise ValueError(
                f"clip has bounds for {sorted(self.clip)}, the model's trainable layers are "
                f"{layers}; they differ in {different}. Give one bound for each, or one number."
            )
        return self.clip
