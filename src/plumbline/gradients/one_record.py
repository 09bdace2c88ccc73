"""Runs a function for one record, and ``torch.vmap`` makes the batch of it.

Inside, there is no row number, no neighbour and no batch statistic: whatever the function does, it
does with one record. What ``vmap`` by itself leaves open (random numbers, rules that see the whole
batch, tensors that are kept) is closed by ``record_mode.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import _add_batch_dim, _remove_batch_dim
from torch._functorch.vmap import (  # type: ignore[attr-defined]
    lazy_load_decompositions,
    vmap_increment_nesting,
)
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from plumbline.gradients.errors import CaptureError, LossError, RecordsMixError
from plumbline.gradients.lowering import by_record, has_records
from plumbline.gradients.record_mode import RecordMode
from plumbline.gradients.tape import Tape, quiet_vmap
from plumbline.gradients.vmap_errors import CHECKPOINTED, explained
from plumbline.record_random import Draws


def each_record(
    function: Callable[[Any], Tensor],
    batch: Any,
    *,
    rows: int | None = None,
    random: Draws | None = None,
) -> Tensor:
    """``function`` of every record, ``[B, ...]``; see ``for_each_record``."""
    return for_each_record(function, batch, Tape(record_count(batch, rows), random, rows=rows))


def for_each_record(function: Callable[[Any], Tensor], batch: Any, tape: Tape) -> Tensor:
    """``function`` of every record, ``[B, ...]``.

    Args:
        function: From one record (the batch's nesting, with tensors ``[rows, ...]``) to a tensor.
        batch: Tensors ``[B * rows, ...]`` in any nesting, a record's rows adjacent (usually one);
            what is not a tensor, or has no dimension, is the same for every record.
        tape: The capture; it knows the number of records, and of rows of each.

    Raises:
        UnsupportedModelError: If the function cannot run under ``vmap``; names the line.
    """
    leaves, rebuilt = _flattened(batch)
    places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()]
    # Copies: a model may change its input in place, and another pass reads it again.
    rows = [by_record(leaves[at], tape.records).clone() for at in places]
    before = torch.default_generator.get_state() if tape.has_random else None
    mode = RecordMode(tape)

    def one(level: int) -> Tensor:
        record = list(leaves)
        for at, value in zip(places, rows, strict=True):
            record[at] = mode.noted(_add_batch_dim(value, 0, level))
        own = function(rebuilt(record))
        if not has_records(own):
            raise LossError(
                "The loss is the same for every record: it does not depend on the record's data."
            )
        return _remove_batch_dim(own, level, tape.records, 0)

    _load_rules()
    # What torch.vmap does, without its handling of arguments and results of any kind, which takes
    # as long as a small model.
    with (
        explained(),
        quiet_vmap(),
        disable_saved_tensors_hooks(CHECKPOINTED),
        vmap_increment_nesting(tape.records, "error") as level,
        mode,
    ):
        result = one(level)
    tape.guard = mode
    mode.refuse_kept()
    if before is not None and not torch.equal(before, torch.default_generator.get_state()):
        raise RecordsMixError(
            "The model draws random numbers in a way that depends on a record's place in the "
            'batch. Use torch\'s usual random functions, or isolation="loop".'
        )
    return result


_load_rules = cache(lazy_load_decompositions)


def record_count(batch: Any, rows: int | None = None) -> int:
    """The number of records of a batch, of which each has ``rows`` adjacent rows."""
    found, rows = batch_rows(batch), 1 if rows is None else rows
    if rows < 1 or found % rows:
        raise CaptureError(
            f"rows={rows} of the batch are one record, but the batch has {found} rows. Give a "
            "batch with the same number of rows for every record."
        )
    return found // rows


def batch_rows(batch: Any) -> int:
    """The number of rows of a batch: the first dimension of all of its tensors."""
    leaves, _ = _flattened(batch)
    lengths = [leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
    if not lengths:
        raise CaptureError(
            f"The batch, of type {type(batch).__name__}, has no tensors with one row per record. "
            "Give tensors in a tuple, a list or a dict."
        )
    if len(set(lengths)) > 1:
        raise CaptureError(
            f"The batch's tensors have {' and '.join(map(str, sorted(set(lengths))))} rows. Each "
            "needs one row per record, in its first dimension; what all records share is given to "
            "the model in another way."
        )
    return lengths[0]


def _flattened(batch: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """What a batch holds, and how to make the same nesting of other values."""
    if type(batch) is tuple and all(isinstance(one, Tensor) for one in batch):
        return list(batch), tuple  # the usual batch, in less time
    leaves, spec = tree_flatten(batch)
    return leaves, lambda values: tree_unflatten(values, spec)
