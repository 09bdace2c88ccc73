"""A linear model on hashed text features, from sparse batches: no record ever becomes dense.

The logistic model of ``methods.md`` part H: with ``plumbline.data.hashing`` it beats the papers'
recurrent networks on IMDb at the same epsilon.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plumbline.models.registry import model


class HashedLinear(nn.Module):
    """Class scores from sparse records; all zero at first.

    With two classes there is one score, for the second class: the model is logistic.
    """

    def __init__(self, bins: int, classes: int, bias: bool) -> None:
        super().__init__()
        outputs = 1 if classes == 2 else classes
        self.bag = nn.EmbeddingBag(bins, outputs, mode="sum")
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        nn.init.zeros_(self.bag.weight)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """Logits ``[B, classes]`` of bins ``[B, K]`` and values ``[B, K]``; padding has value 0."""
        bins, values = x
        scores: Tensor = self.bag(bins, per_sample_weights=values)
        if self.bias is not None:
            scores = scores + self.bias
        return torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores


@model("hashed-linear")
def hashed_linear(*, bins: int = 2**16, classes: int = 2, bias: bool = False) -> nn.Module:
    """Scores of hashed text features, a pair of ``[B, K]`` tensors: ``bins`` parameters.

    With more than two classes, ``classes * bins``.

    Args:
        bins: The number of bins of the features.
        classes: The number of classes.
        bias: Whether to learn a bias. Records have norm 1, so a bias doubles a gradient's squared
            norm, and with it the effect of clipping: leave it out when the classes are balanced.
    """
    return HashedLinear(bins, classes, bias)
