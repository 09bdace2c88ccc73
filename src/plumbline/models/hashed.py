"""A linear model on hashed text features, from sparse batches: nothing as wide as the bins is built.

The logistic model of ``methods.md`` part H: with ``plumbline.data.hashing`` it beats the papers'
recurrent networks on IMDb at the same epsilon.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plumbline.models.registry import model


class HashedLinear(nn.Module):
    """Class scores from sparse records; zero at first.

    Attributes:
        weight: A row of scores for each bin. Two classes share one column, which makes the model
            logistic: the score of the second class, that of the first being zero.
        bias: The scores of a record without words.
    """

    def __init__(self, bins: int, classes: int) -> None:
        super().__init__()
        outputs = 1 if classes == 2 else classes
        self.bag = nn.EmbeddingBag(bins, outputs, mode="sum")
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.zeros_(self.bag.weight)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """Logits ``[B, classes]`` of bins ``[B, K]`` and values ``[B, K]``; padding has value 0."""
        bins, values = x
        scores = self.bag(bins, per_sample_weights=values) + self.bias
        return torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores


@model("hashed-linear")
def hashed_linear(*, bins: int = 2**16, classes: int = 2) -> nn.Module:
    """Scores of hashed text features, a pair of ``[B, K]`` tensors: ``bins + 1`` parameters.

    With more than two classes, ``classes * (bins + 1)``.
    """
    return HashedLinear(bins, classes)
