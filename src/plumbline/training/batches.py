"""A step's batch as a method sees it: the records that were drawn, in physical chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from plumbline.evaluation import Rows
from plumbline.evaluation.seen import repeated
from plumbline.gradients import (
    PerSampleGradients,
    Perturbation,
    capture,
    grouped_batch_norm,
    hvp,
)
from plumbline.gradients.random_state import RandomState
from plumbline.gradients.summation import MOST_RECORDS, Bins, bin_count, binned
from plumbline.mechanism.calibration import Plan
from plumbline.record_random import Draws
from plumbline.sampling import chunks
from plumbline.training.losses import BatchLoss


class Owner(Protocol):
    """What a batch needs of the ``Private`` that drew it."""

    model: nn.Module
    loss: BatchLoss
    plan: Plan
    sensitive_features: Tensor | None
    max_physical_batch: int | None

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""

    def fetch(self, indices: Tensor) -> Any:
        """Some records, as the loss sees them, on the model's device."""

    def draws_key(self, step: int) -> str:
        """The key of the records' own random numbers in a step."""


@dataclass(eq=False)
class PrivateBatch:
    """A step's Poisson batch, possibly empty.

    Where several processes make a run, each has the whole batch and takes its share of the units in
    ``chunks``, possibly none: every unit, with all of its records, is in one process's share.

    Attributes:
        step: The number of the step it is for.
        indices: The records' numbers, ``[R]``. Who is in a batch is private: do not publish it.
        unit_ids: The numbers of its units, ``[N]``: records, or users, or buckets of them.
    """

    step: int
    indices: Tensor
    unit_ids: Tensor
    _owner: Owner = field(repr=False)
    _unit: Tensor | None = field(default=None, repr=False)  # of each record, [R], ascending
    _together: bool = field(default=False, repr=False)
    _share: tuple[int, int] = field(default=(0, 1), repr=False)  # which one, of how many

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the gradient query."""
        return self._owner.plan.noise_multiplier

    @property
    def expected_size(self) -> int:
        """The public constant L by which sums are divided."""
        return self._owner.plan.expected_batch_size

    @property
    def sampling_rate(self) -> float:
        """The probability with which a record takes part."""
        return self._owner.plan.sampling_rate

    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name."""
        return self._owner.parameters()

    def chunks(self, limit: int | None = None) -> Iterator[PrivateChunk]:
        """The physical chunks, in order, of at most ``limit`` records; every call starts again."""
        most = self._most
        if limit is not None:
            most = limit if most is None else min(most, limit)
        indices, unit_ids, units, bins = self._own(most)
        whole = units if bins is None or most is None else _whole(bins)
        for places in chunks(torch.arange(len(indices)), most, whole):
            unit = places if units is None else units[places]
            first, last = int(unit[0]), int(unit[-1])
            yield PrivateChunk(
                indices[places],
                unit_ids[first : last + 1],
                self,
                int(places[0]),
                None if units is None else unit - first,
                self._together,
                None if bins is None else Bins(bins[first : last + 1]),
            )

    def zeros(self) -> dict[str, Tensor]:
        """A zero for every trainable parameter: the sum over an empty batch."""
        return {name: torch.zeros_like(p) for name, p in self._owner.parameters().items()}

    def draws(self, purpose: str) -> Draws:
        """Random numbers of each unit's own, the same whenever they are asked for in the step."""
        return Draws(self.unit_ids, f"{purpose} {self._owner.draws_key(self.step)}")

    def bucketed(self, buckets: Tensor, *, together: bool) -> PrivateBatch:
        """The batch with all units of the same bucket (``buckets``, ``[units]``) made one unit."""
        of_record = buckets if self._unit is None else buckets[self._unit]
        order = torch.argsort(of_record, stable=True)
        ids, unit = torch.unique_consecutive(of_record[order], return_inverse=True)
        return replace(
            self,
            indices=self.indices[order],
            unit_ids=ids,
            _unit=unit,
            _together=together,
        )

    def chunk_of(self, indices: Tensor) -> PrivateChunk:
        """A chunk of these records (``[R]``), each of which is a unit; for tests of the model."""
        return PrivateChunk(indices, indices, self, 0)

    @property
    def _most(self) -> int | None:
        return self._owner.max_physical_batch

    def _own(self, most: int | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """This process's records ``[R]``, its units, and each record's unit among them, ``[R]``.

        Last the units' bins, ascending, if there are any: whole bins go to one process.
        """
        which, shares = self._share
        bins = self._bins(most)
        turn = torch.arange(len(self.unit_ids))  # so that all have equally much to do
        if bins is None:
            own = turn[which::shares]
        else:
            own = torch.argsort(bins, stable=True)
            if shares > 1:
                own = own[torch.where(bins < 0, turn, bins)[own] % shares == which]
            bins = bins[own]
        if self._unit is None:
            return self.indices[own], self.unit_ids[own], None, bins
        place = torch.full_like(turn, -1)
        place[own] = turn[: len(own)]
        unit, records = place[self._unit].sort(stable=True)
        records = records[unit >= 0]
        return self.indices[records], self.unit_ids[own], unit[unit >= 0], bins

    def _bins(self, most: int | None) -> Tensor | None:
        """The bin in which each unit's gradient is added up, ``[N]``; its own draw."""
        if len(self.unit_ids) > MOST_RECORDS:
            raise ValueError(
                f"The batch has {len(self.unit_ids):,} records, but the rounding of a sum is "
                f"proven for {MOST_RECORDS:,} at most. Use a smaller expected batch size."
            )
        if self._unit is not None and most is not None:
            return None  # a chunk is limited in records, and a bin in units
        count = bin_count(self.expected_size, most, self._share[1])
        return None if count is None else binned(self.draws("bins").integers(count))

    @contextmanager
    def same_random_numbers(self, place: int) -> Iterator[None]:
        """Gives the chunk at ``place`` the same random numbers (dropout masks) in all passes.

        They come from the run's own randomness, not from torch's generator, whose seed is often no
        secret: who knows the masks sees what one record more does to those of all the others.
        """
        now = RandomState(self._owner.parameters().values())
        torch.manual_seed(self._seed(place))
        try:
            yield
        finally:
            now.restore()

    def _seed(self, place: int) -> int:
        named = f"{self._owner.draws_key(self.step)} {self._share} {place}"
        return int.from_bytes(hashlib.blake2b(named.encode(), digest_size=8).digest(), "big")


@dataclass(eq=False)
class ChosenBatch(PrivateBatch):
    """A batch of chosen units, to be looked at and not to be stepped on.

    Sums are divided by the number of units chosen, and all are taken at once.

    Attributes:
        chosen: How many units were chosen.
    """

    chosen: int = 0

    @property
    def expected_size(self) -> int:
        return self.chosen

    @property
    def unit(self) -> Tensor | None:
        """The place of each record's unit among ``unit_ids``, ``[R]``; None where each is one."""
        return self._unit

    @property
    def _most(self) -> None:
        return None

    def _bins(self, most: int | None) -> None:
        return None  # the units stay in their order


@dataclass(eq=False)
class PrivateChunk:
    """A physical part of a batch.

    Attributes:
        indices: The records' numbers, ``[R]``.
        unit_ids: Its units' numbers, ``[units]``.
        bins: Which units' gradients may be added up in float32, if any.
    """

    indices: Tensor
    unit_ids: Tensor
    _batch: PrivateBatch = field(repr=False)
    _place: int = field(repr=False)  # of its first record, in the batch
    _unit: Tensor | None = field(default=None, repr=False)  # of each record, [R], ascending
    _together: bool = field(default=False, repr=False)
    bins: Bins | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._owner = self._batch._owner

    @property
    def step(self) -> int:
        """The number of the step."""
        return self._batch.step

    @property
    def units(self) -> int:
        """How many records (or users, or buckets) it has."""
        return len(self.unit_ids)

    @property
    def records(self) -> int:
        """How many records it has."""
        return len(self.indices)

    @property
    def groups(self) -> Tensor | None:
        """The group of each unit, ``[units]``, if groups were given: that of its first record."""
        features = self._owner.sensitive_features
        if features is None:
            return None
        own = features[self.indices]
        if self._unit is None:
            return own
        starts = torch.searchsorted(self._unit, torch.arange(self.units))
        return own[starts]

    @cached_property
    def data(self) -> Any:
        """The records, as the loss sees them."""
        return self._owner.fetch(self.indices)

    def losses(self) -> Tensor:
        """Each record's loss, ``[R]``, with the random numbers of its other passes."""
        with self._batch.same_random_numbers(self._place):
            return self._owner.loss(self._owner.model, self.data)

    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name."""
        return self._owner.parameters()

    def outputs(self) -> Any:
        """The model's outputs for the records, where the loss is one of output and target."""
        with self._batch.same_random_numbers(self._place):
            return self._owner.loss.outputs(self._owner.model, self.data)

    def draws(self, purpose: str, *, of: Literal["records", "units"] = "records") -> Draws:
        """Random numbers of each record's (or unit's) own, the same in every pass of the step."""
        numbers = self.indices if of == "records" else self.unit_ids
        return Draws(numbers, f"{purpose} {self._owner.draws_key(self.step)}")

    def capture(
        self,
        at: Perturbation | Mapping[str, Tensor] | None = None,
        *,
        rows: Rows | None = None,
    ) -> PerSampleGradients:
        """The gradients of its units: records, or users or buckets with all of their records."""

        def taken(one: _Pass) -> PerSampleGradients:
            where = at
            if isinstance(at, Perturbation) and one.unit is not None:
                where = replace(at, index=one.unit.clamp(max=self.units - 1))
            together = None if one.together is None else one.unit
            with self._batch.same_random_numbers(self._place), one.normalised():
                return capture(one.model, one.losses, at=where, records=one.rows, together=together)

        one = self._pass(rows)
        if one.rows == 1:
            return self._of_two(one, taken)
        gradients = taken(one)
        if one.unit is None or one.together is not None:
            return gradients
        return gradients.pool(one.unit, self.units)

    def _of_two(
        self, one: _Pass, taken: Callable[[_Pass], PerSampleGradients]
    ) -> PerSampleGradients:
        """What is ``taken`` of a single row, from a batch that has the row twice.

        Matrix products of one row are rounded differently from those of several. A record alone
        would have another gradient than beside others, and quite another one where sums cancel.
        """
        own = torch.arange(2, device=one.device)
        twice = replace(one, data=repeated(one.data, 2), rows=2, unit=own)
        if one.together is not None:
            twice = replace(twice, together=own)
        if one.weights is not None:
            twice = replace(twice, weights=one.weights.repeat(2))
        return taken(twice).select(own[:1])

    def hvp(self, vectors: Mapping[str, Tensor], *, rows: Rows | None = None) -> PerSampleGradients:
        """Its units' Hessians times vectors ``[units, *shape]``, or one ``[*shape]`` for all."""
        shapes = {name: p.shape for name, p in self._owner.parameters().items()}

        def by(unit: Tensor) -> dict[str, Tensor]:
            return {
                name: value if value.shape == shapes[name] else value[unit.to(value.device)]
                for name, value in vectors.items()
            }

        def taken(one: _Pass) -> PerSampleGradients:
            own = vectors if one.unit is None else by(one.unit.clamp(max=self.units - 1))
            with self._batch.same_random_numbers(self._place), one.normalised():
                return hvp(one.model, one.losses, own, records=one.rows)

        one = self._pass(rows)
        if one.rows == 1:
            return self._of_two(one, taken)
        products = taken(one)
        return products if one.unit is None else products.pool(one.unit, self.units)

    def _pass(self, rows: Rows | None) -> _Pass:
        loss, model = self._owner.loss, self._owner.model
        device = next(iter(self._owner.parameters().values())).device
        own = None if self._unit is None else self._unit.to(device)
        if rows is None:
            bucket = own if self._together else None
            return _Pass(loss, model, self.data, self.records, own, bucket)
        record = rows.record.to(device)
        unit = record if own is None else own[record]
        together = record if rows.together else unit if self._together else None
        return _Pass(loss, model, rows.data, len(record), unit, together, rows.weights)


@dataclass(frozen=True)
class _Pass:
    """One pass of rows through the model.

    Attributes:
        rows: How many rows it is shown.
        unit: The unit of each row, ``[rows]``; None where each row is one.
        together: Which rows BatchNorm takes together, ``[rows]``: those of a record, or all of a
            bucket's; None for BatchNorm as it is.
        weights: By how much each row's loss counts, ``[rows]``; None for fully.
    """

    loss: BatchLoss
    model: nn.Module
    data: Any
    rows: int
    unit: Tensor | None
    together: Tensor | None
    weights: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def losses(self) -> Tensor:
        """Each row's loss, ``[rows]``."""
        losses = self.loss(self.model, self.data)
        if self.weights is None:
            return losses
        weights = self.weights.to(losses)
        return torch.where(weights == 0, 0, losses * weights)

    def normalised(self) -> Any:
        """BatchNorm over the rows that belong together, where that is asked for."""
        if self.together is None:
            return nullcontext()
        return grouped_batch_norm(self.model, self.together)


def _whole(bins: Tensor) -> Tensor:
    """What a chunk may not cut, ``[units]``: a bin, or a unit that has none."""
    alone = -2 - torch.arange(len(bins))
    return torch.where(bins < 0, alone, bins)
