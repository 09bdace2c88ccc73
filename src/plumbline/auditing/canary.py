"""A canary: a record whose gradient is a Dirac direction, and the small world it lives in.

Every record has one word and a size; the model adds up two weights for the word and multiplies them
by the size. So a record's gradient has two entries, one in each table, at its own word, which no
other record has, and it is as long as the record is large. The second table has further words that
nobody has: there the mechanism's noise arrives alone, one independent repetition in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SIZES = (1.07, 10.0, 35.3, 1e6)
"""Those that are tried: gradients just within a bound of 1, beyond it, just within 50, far beyond.

An adaptive bound's count tells most of a record within it; Global scaling drops one beyond 50.
"""

_IDLE = "second.weight"  # the parameter whose last entries belong to nobody
_START = 0.3  # the first weights: at zero, predictions would be even and some slopes vanish


@dataclass(frozen=True)
class Canary:
    """What is planted.

    Attributes:
        size: How long its gradient is, about.
        group: Its value of the sensitive feature, 0 or 1.
    """

    size: float
    group: int = 1


class Words(nn.Module):
    """``logit = size * (first[word] + second[word])``.

    Args:
        records: How many records there are, the canary among them; each has a word.
        idle: How many more words the second table has, which nobody has.
    """

    def __init__(self, records: int, idle: int) -> None:
        super().__init__()
        self.first = nn.Embedding(records, 1)
        self.second = nn.Embedding(records + idle, 1)
        for table in (self.first, self.second):
            nn.init.constant_(table.weight, _START)

    def forward(self, words: Tensor, sizes: Tensor) -> Tensor:
        """Logits ``[B]`` of words ``[B]`` and sizes ``[B]``."""
        total: Tensor = (self.first(words) + self.second(words)).squeeze(-1)
        return total * sizes


def records(canary: Canary, others: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """The others and, last, the canary: (words, sizes, targets), and groups, each ``[n]``.

    The gradients of group 1 are long and those of group 0 short: a method that has a bound for each
    group gives the first a larger one.
    """
    numbers = torch.arange(others)
    groups = torch.cat([numbers % 2, torch.tensor([canary.group])])
    sizes = torch.where(groups == 1, 3.0, 0.5)
    sizes[-1] = canary.size
    # Logits are positive and targets 0: the loss is steep however large a record is.
    return (torch.arange(others + 1), sizes, torch.zeros(others + 1)), groups


def idle(values: Mapping[str, Tensor], count: int) -> Tensor:
    """The entries of a gradient that belong to nobody, ``[count]`` float64."""
    return values[_IDLE][-count:, 0].double()
