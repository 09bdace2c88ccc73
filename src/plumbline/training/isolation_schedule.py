"""When a run tests that its model does not mix records, and on which records.

It tests in the first step, whenever a module has changed its mode or a parameter was frozen or
freed, and after 1, 2, 4, 8 ... further steps, since what a model does can depend on its weights. It
uses a few records of the step's own batch.

The model's input is tested too: the same few records are fetched together with others, and must
not look different. (A collate function that pads to the longest record, or views that are taken
over a batch, mix records before the model sees them.)
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plumbline.gradients import without_batch_norm
from plumbline.gradients.errors import RecordsMixError
from plumbline.gradients.isolation import check_isolation
from plumbline.training.batches import PrivateBatch
from plumbline.training.without_trace import evaluating, no_trace

if TYPE_CHECKING:
    from plumbline.training.private import Private

_WATCHED, _COMPANY = 2, 16
_MOVED = 1e-4  # of a loss: products of more rows, or of longer ones, round otherwise


class BadRecords(UserWarning):
    """Many records have a loss that is not finite."""


class Isolation:
    """The tests of one run."""

    def __init__(self) -> None:
        self._steps = 0
        self._told = False
        self._shown = False
        self._modes: tuple[bool, ...] = ()

    def test(self, private: Private, batch: PrivateBatch) -> None:
        """Tests before a step on ``batch``, if a test is due.

        Raises:
            RecordsMixError: If one record's loss depends on another record.
        """
        modes = _modes(private.model)
        due = not self._told or modes != self._modes or self._steps & (self._steps - 1) == 0
        self._steps += 1
        chunk = next(batch.chunks(), None) if due else None
        if chunk is None:
            return
        # A method that lets BatchNorm take some rows together is responsible for these.
        with without_batch_norm(private.model) if private.method.together else nullcontext():
            self._told = check_isolation(
                private.model, lambda data: private.loss(private.model, data), chunk.data
            )
            self._shown = self._shown or _check_company(private, batch)
        self._modes = modes


def _modes(model: nn.Module) -> tuple[bool, ...]:
    return (
        *(module.training for module in model.modules()),
        *(parameter.requires_grad for parameter in model.parameters()),
    )


def _check_company(private: Private, batch: PrivateBatch) -> bool:
    """Compares records fetched alone and with others; False if the batch has too few to tell."""
    most = _COMPANY if private.max_physical_batch is None else private.max_physical_batch
    some = batch.indices[: max(2 * _WATCHED, min(_COMPANY, most))]
    few = some[:_WATCHED]
    if len(some) == len(few):
        return False
    first, other = _losses(private, batch, few, 0), _losses(private, batch, few, 1)
    among = _losses(private, batch, some, 0)
    _warn_of_bad_records(among)
    if torch.equal(first, other):
        return _same(first, among)
    # Dropout would differ with the number of rows. What is left then is drawn record by record, or
    # by generators of the user's own, with which nothing can be compared.
    with evaluating(private.model):
        try:
            first, other = _losses(private, batch, few, 0), _losses(private, batch, few, 0)
            among = _losses(private, batch, some, 0)
        except Exception:  # a loss that is none in evaluation mode
            return True
    return not torch.equal(first, other) or _same(first, among)


def _warn_of_bad_records(losses: Tensor) -> None:
    bad = int((~torch.isfinite(losses)).sum())
    if 2 * bad >= losses.numel():
        warnings.warn(
            f"{bad} of {losses.numel()} records of a batch have a loss that is not finite. They "
            "count as zero, so that they cannot hurt the guarantee, but nothing is learned from "
            "them and the budget is spent all the same: look for missing values in the data. "
            "(This was told by looking at records; do not publish it.)",
            BadRecords,
            stacklevel=2,
        )


def _same(alone: Tensor, among: Tensor) -> bool:
    """Refuses losses ``[R]`` that differ from the first ones of ``among``; returns True."""
    if alone.dim() != 1 or among.dim() != 1:
        return True  # the capture itself says what is wrong with such losses
    begin = among[: len(alone)]
    known = torch.isfinite(alone)
    if len(begin) == len(alone) and torch.equal(known, torch.isfinite(begin)):
        gap, size = (alone - begin)[known].abs(), alone[known].abs()
        if not (gap > _MOVED * (1 + size)).any():
            return True
    raise RecordsMixError(
        "A record's loss depends on which other records it is fetched with: they mix before the "
        "model sees them, or the loss depends on their number. Pad every record to one fixed "
        "length (a collate function that pads to the longest of a batch tells each record how "
        "long the others are, unless the model masks the padding), take views and normalise record "
        "by record, and divide no loss by the size of the batch."
    )


def _losses(private: Private, batch: PrivateBatch, indices: Tensor, seed: int) -> Tensor:
    """The losses of the rows that the method shows the model, first records first."""
    chunk = batch.chunk_of(indices)
    with no_trace(private.model), torch.no_grad():
        torch.manual_seed(seed)
        shown: Any = private.method.see(chunk)
        return private.loss(private.model, shown.data).detach().double()
