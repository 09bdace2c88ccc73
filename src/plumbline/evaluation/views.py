"""Self-augmentation (De et al., 2022): record i's gradient is the mean over random views of it.

The views are averaged before clipping, so a record with all of its views is bounded as one record
is. They are drawn for the record and the step, so every pass of a step sees the same ones. An
augmentation of the user's own is given one record at a time, with random numbers of that record's
own, so that it cannot mix records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plumbline.checks import check_count, is_row_by_row
from plumbline.evaluation.base import Chunk, Evaluation, Rows, evaluation
from plumbline.evaluation.seen import Field, record_of_rows, repeated, shown, with_inputs
from plumbline.record_random import Draws, kept_generators, set_generators

Augment = Callable[[Tensor, Draws], Tensor]


@evaluation
@dataclass
class Views(Evaluation):
    """The mean gradient over ``count`` random views of each record.

    Attributes:
        augment: Makes views of rows, from draws of their own; ``plumbline.augmentations`` has some.
            Unless its class says that it is ``row_by_row``, it is shown one record's rows at a
            time, ``[count, ...]``.
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
            if is_row_by_row(self.augment) or not len(rows):
                return self.augment(rows, draws)
            seeds = chunk.draws("generators of views").seeds().tolist()
            made = []
            with kept_generators():
                for start, seed in zip(range(0, len(rows), self.count), seeds, strict=True):
                    set_generators("views", seed)
                    own = slice(start, start + self.count)
                    made.append(self.augment(rows[own], draws.rows(own)))
            return torch.cat(made)

        data: Any = with_inputs(repeated(chunk.data, self.count), self.inputs, views)
        record = record_of_rows(chunk.records, self.count, torch.device("cpu"))
        weights = torch.full((len(record),), 1 / self.count)
        return shown(chunk, Rows(data, record, weights))
