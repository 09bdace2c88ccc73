"""The losses that a step has seen: their mean, for the user alone, and a warning of bad ones.

They are exact answers about records, so no guarantee covers them, and their mean says so wherever
it is printed. No further pass over the records is made for them.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor


class NotCovered(float):
    """A number that was computed from exact records; printed, it says so.

    Arithmetic with it gives plain numbers.
    """

    def __repr__(self) -> str:
        return format(self)

    def __format__(self, spec: str) -> str:
        return f"{float(self):{spec or '.4g'}} (not covered by epsilon)"

    __str__ = __repr__

    def item(self) -> NotCovered:
        """Itself, for loops that ask so of a tensor."""
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"What private.step returns is a number, the mean loss, and has no {name!r}: the "
                "weights are updated already. Leave out loss.backward(), optimizer.step() and what "
                "looks at gradients."
            )


class BadRecords(UserWarning):
    """Many records have a loss from which nothing can be learned."""


class StepLosses:
    """The losses of one step's batch, chunk by chunk. Private: do not publish them."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, int]] = {}
        self._bad: dict[int, float] = {}
        self._zero = True

    def note(self, place: int, losses: Tensor, records: int) -> None:
        """Notes a pass over a chunk.

        Args:
            place: Where the chunk begins in the batch.
            losses: The losses, ``[rows]``: one for each record, or several.
            records: How many records the chunk has.
        """
        good, total = len(losses), float(losses.sum(dtype=torch.float64))
        if not math.isfinite(total):
            finite = losses[torch.isfinite(losses)]
            good, total = len(finite), float(finite.sum(dtype=torch.float64))
        self._zero &= total == 0.0 and not losses.any()
        self._bad[place] = (len(losses) - good) * records / max(1, len(losses))
        if place not in self._sums:  # later passes of a step are at other weights
            self._sums[place] = total, good

    @property
    def mean(self) -> NotCovered:
        """The mean of the finite losses in the first pass over the records; NaN if there is none.

        Of several processes, each knows those of its own share.
        """
        total, count = (sum(parts) for parts in zip((0.0, 0), *self._sums.values(), strict=True))
        return NotCovered(total / count if count else math.nan)

    def warn_of_bad(self, records: int, stacklevel: int) -> None:
        """Warns if at least half of the batch's records have a loss that is not finite."""
        if records > 1 and 2 * sum(self._bad.values()) >= records:
            warnings.warn(
                "At least half of the records of a batch have a loss that is not finite. They "
                "count as zero, so that they cannot hurt the guarantee, but nothing is learned "
                "from them and the budget is spent all the same: look for missing values in the "
                "data. (This was told by looking at records; do not publish it.)",
                BadRecords,
                stacklevel=stacklevel,
            )

    def warn_of_zero(self, records: int, stacklevel: int) -> None:
        """Warns if every record's loss is exactly zero."""
        if records > 1 and self._bad and self._zero:
            warnings.warn(
                "The loss of every record of the first batch is exactly zero, and nothing is "
                "learned from that. The loss is run for one record at a time: one that compares "
                "the records of a batch (in-batch negatives, a contrastive loss) finds no other. "
                "Make what it compares a part of each record. (This was told by looking at "
                "records; do not publish it.)",
                BadRecords,
                stacklevel=stacklevel,
            )
