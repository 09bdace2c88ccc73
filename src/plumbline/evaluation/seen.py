"""A chunk of which the model sees something else than its records: views, or companions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from plumbline.evaluation.base import Chunk, Rows
from plumbline.gradients import PerSampleGradients, Perturbation

Field = int | str
"""Where a batch has the inputs: a place in a tuple, or a name in a mapping."""


def shown(chunk: Chunk, rows: Rows) -> Chunk:
    """The chunk through the rows that are shown instead of its records."""
    return cast(Chunk, _Seen(chunk, rows))


class _Seen:
    """What the model sees is the rows; everything else is the chunk's own."""

    def __init__(self, chunk: Chunk, rows: Rows) -> None:
        self._chunk, self._rows = chunk, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chunk, name)

    @property
    def data(self) -> Any:
        return self._rows.data

    def capture(
        self, at: Perturbation | Mapping[str, Tensor] | None = None, *, rows: Rows | None = None
    ) -> PerSampleGradients:
        return self._chunk.capture(at, rows=self._rows if rows is None else rows)

    def hvp(self, vectors: Mapping[str, Tensor], *, rows: Rows | None = None) -> PerSampleGradients:
        return self._chunk.hvp(vectors, rows=self._rows if rows is None else rows)


def repeated(data: Any, times: int) -> Any:
    """Every row of every tensor ``times`` times, side by side."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        return leaf.repeat_interleave(times, 0)

    return tree_map(of, data)


def with_inputs(data: Any, where: Field, change: Callable[[Tensor], Tensor]) -> Any:
    """The batch with the inputs at ``where`` changed."""
    if isinstance(data, Mapping):
        if where not in data:
            raise ValueError(
                f"The batch has no field {where!r}; it has {sorted(data)}. Say where the inputs "
                "are: inputs=<name>."
            )
        return {**data, where: change(data[where])}
    places = range(-len(data), len(data)) if isinstance(data, tuple | list) else ()
    if isinstance(where, int) and where in places:
        parts = list(data)
        parts[where] = change(parts[where])
        # A named tuple takes its fields one by one.
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    raise ValueError(
        f"The inputs are said to be at {where!r} of a batch of type {type(data).__name__}; they "
        "must be at a place of a tuple, or in a field of a mapping. Say where: inputs=..."
    )


def record_of_rows(records: int, times: int, like: torch.device) -> Tensor:
    """Which record each of ``times`` rows per record belongs to, ``[records * times]``."""
    return torch.arange(records, device=like).repeat_interleave(times)
