"""Self-augmentation (De et al., 2022): record i's gradient is the mean over random views of it.

The views are averaged before clipping, so a record with all of its views is bounded as one record
is. They are drawn for the record and the step, so every pass of a step sees the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plumbline.checks import check_count
from plumbline.evaluation.base import Chunk, Evaluation, Rows, evaluation
from plumbline.evaluation.seen import Field, Seen, record_of_rows, repeated, with_inputs
from plumbline.record_random import Draws

Augment = Callable[[Tensor, Draws], Tensor]


@evaluation
@dataclass
class Views(Evaluation):
    """The mean gradient over ``count`` random views of each record.

    Attributes:
        augment: Makes views of rows, from draws of their own; ``plumbline.augmentations`` has some.
        count: How many views, K.
        inputs: Where a batch has the inputs that are augmented.
    """

    augment: Augment
    count: int = 8
    inputs: Field = 0

    slot = "records"

    def __post_init__(self) -> None:
        check_count("count", self.count)
        if not callable(self.augment):
            raise TypeError(
                f"augment is {self.augment!r}; give a function of (rows, draws), such as "
                "plumbline.augmentations.Shift(4)."
            )

    @property
    def passes(self) -> int:
        return self.count

    def see(self, chunk: Chunk) -> Chunk:
        draws = chunk.draws("views").repeat(self.count)

        def views(rows: Tensor) -> Tensor:
            return self.augment(rows, draws)

        data: Any = with_inputs(repeated(chunk.data, self.count), self.inputs, views)
        record = record_of_rows(chunk.records, self.count, torch.device("cpu"))
        weights = torch.full((len(record),), 1 / self.count)
        return Seen(chunk, Rows(data, record, weights))
