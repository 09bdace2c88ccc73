"""Neighbouring batches of adversarial records, and the network they go through.

A neighbourhood has a few records, each of a kind that breaks something: huge, tiny, not finite,
copies and opposites of others, gradients that cancel. Its batches are sets of these records, and
its neighbours are all pairs of batches that differ by one record, added or replaced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

TOKENS, WIDTH = 6, 3
CONTENTS = 7
"""Of a full neighbourhood: six records, the last of them with two contents."""

COUNT = 7
"""How many neighbourhoods have records of all kinds, several times."""

Batch = tuple[bool, ...]
"""Which contents are in a batch."""


class TokenNetwork(nn.Module):
    """Tokens through a layer, pooled with alternating signs, and classified.

    The signs let a record with nearly equal tokens have a gradient that cancels. There is no
    saturation and no last bias: the gradient grows and shrinks with the record.
    """

    signs: Tensor

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4)
        self.norm = nn.BatchNorm1d(4) if batch_norm else nn.Identity()
        self.outer = nn.Linear(4, 2, bias=False)
        self.register_buffer("signs", torch.tensor([1.0, -1.0]).repeat(TOKENS // 2)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[B, 2]`` of tokens ``[B, TOKENS, WIDTH]``."""
        hidden = nn.functional.leaky_relu(self.inner(x), 0.1)
        logits: Tensor = self.outer(self.norm((hidden * self.signs).sum(1)))
        return logits


def _cancelling(left: float, scale: float, draw: torch.Generator) -> Tensor:
    """Tokens that are nearly equal: their gradients cancel but for about ``left`` of them."""
    token = 1 + torch.rand(1, WIDTH, generator=draw)
    return scale * token * (1 + left * torch.randn(TOKENS, WIDTH, generator=draw))


KINDS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "ordinary": lambda x, draw: x,
    "random": lambda x, draw: 10.0 ** float(6 * torch.rand((), generator=draw) - 3) * x,
    "scaled by 1e6": lambda x, draw: 1e6 * x,
    "scaled by 1e15": lambda x, draw: 1e15 * x,
    "scaled by 1e30": lambda x, draw: 1e30 * x,
    "tiny": lambda x, draw: 1e-30 * x,
    "zero": lambda x, draw: torch.zeros_like(x),
    "NaN": lambda x, draw: torch.full_like(x, math.nan),
    "one NaN": lambda x, draw: torch.cat([torch.full_like(x[:1], math.nan), x[1:]]),
    "infinite": lambda x, draw: torch.full_like(x, math.inf),
    "duplicate": lambda x, draw: x,
    "opposite": lambda x, draw: x,
    "negated": lambda x, draw: -1e3 * x,
    "cancelling": lambda x, draw: _cancelling(1e-4, 1.0, draw),
    "cancelling, large": lambda x, draw: _cancelling(1e-6, 1e6, draw),
    "cancelling to nothing": lambda x, draw: _cancelling(1e-7, 1e6, draw),
}
"""What is made of a record of ordinary size, or of another of the neighbourhood."""

COPIES = ("duplicate", "opposite", "negated")
"""Those made of another; the opposite has the other label: its gradient points the other way."""


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Records and their batches.

    Attributes:
        x: Inputs, ``[contents, TOKENS, WIDTH]``.
        y: Labels, ``[contents]``.
        groups: 0 or 1, ``[contents]``.
        kinds: What each content is.
        batches: The batches that are compared; the first is empty.
    """

    x: Tensor
    y: Tensor
    groups: Tensor
    kinds: list[str]
    batches: list[Batch]

    @property
    def records(self) -> int:
        """How many records there are: the last two contents are of the same one."""
        return len(self.kinds) - 1

    def those(self, batch: Batch) -> list[str]:
        """The kinds of a batch's records."""
        return list(itertools.compress(self.kinds, batch))

    def places(self, batch: Batch) -> Tensor:
        """Where each record's content is, ``[records]``."""
        places = torch.arange(self.records)
        places[-1] += batch[-1]
        return places

    @cached_property
    def added(self) -> Tensor:
        """Pairs of batches, by number, of which one has a record more, ``[2, pairs]``."""
        return self._pairs[0]

    @cached_property
    def replaced(self) -> Tensor:
        """Pairs of batches of which one has another record instead of one, ``[2, pairs]``."""
        return self._pairs[1]

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor]:
        bits = torch.tensor(self.batches, dtype=torch.long)
        apart = (bits[:, None] != bits[None]).sum(2).triu(1)
        size = bits.sum(1)
        return (apart == 1).nonzero().T, ((apart == 2) & (size[:, None] == size)).nonzero().T


@lru_cache
def all_kinds(count: int = COUNT) -> list[Neighbourhood]:
    """Neighbourhoods with records of all kinds in turn; more are the same ones and others."""
    draw = torch.Generator().manual_seed(0)
    shuffled = (list(KINDS)[place] for _ in itertools.count() for place in _shuffle(draw))
    return [
        neighbourhood(list(itertools.islice(shuffled, CONTENTS)), number) for number in range(count)
    ]


def neighbourhood(kinds: Sequence[str], seed: int) -> Neighbourhood:
    """Records of these kinds, the last two of them contents of one record, in every batch."""
    draw = torch.Generator().manual_seed(seed)
    count = len(kinds)
    x = torch.randn(count, TOKENS, WIDTH, generator=draw)
    y, groups = (torch.randint(2, (count,), generator=draw) for _ in range(2))
    # Copies come last, when what they copy is there.
    for place in sorted(range(count), key=lambda place: kinds[place] in COPIES):
        source = place
        if kinds[place] in COPIES:
            source = int(torch.randint(count, (), generator=draw))
            y[place] = 1 - y[source] if kinds[place] == "opposite" else y[source]
        x[place] = KINDS[kinds[place]](x[source], draw)
    batches = [one for one in itertools.product((False, True), repeat=count) if not all(one[-2:])]
    return Neighbourhood(x, y, groups, list(kinds), batches)


def _shuffle(draw: torch.Generator) -> list[int]:
    places: list[int] = torch.randperm(len(KINDS), generator=draw).tolist()
    return places
