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
        """What the records' own random numbers in a step are drawn from."""


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
        indices, unit_ids, units = self._own()
        for places in chunks(torch.arange(len(indices)), most, units):
            unit = places if units is None else units[places]
            first, last = int(unit[0]), int(unit[-1])
            yield PrivateChunk(
                self,
                self._owner,
                place=(int(places[0]), len(places)),
                indices=indices[places],
                unit_ids=unit_ids[first : last + 1],
                unit=None if units is None else unit - first,
                together=self._together,
            )

    def zeros(self) -> dict[str, Tensor]:
        """A zero for every trainable parameter: the sum over an empty batch."""
        return {name: torch.zeros_like(p) for name, p in self._owner.parameters().items()}

    def draws(self, purpose: str) -> Draws:
        """Random numbers of each unit's own, the same whenever they are asked for in the step."""
        return Draws(self.unit_ids, f"{purpose} {self._owner.draws_key(self.step)}")

    def bucketed(self, buckets: Tensor, *, together: bool) -> PrivateBatch:
        """The batch with the units of equal ``buckets`` (``[units]``) made one unit."""
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
        """A chunk of these records (``[R]``), each a unit, to be looked at."""
        return PrivateChunk(
            self,
            self._owner,
            place=(0, len(indices)),
            indices=indices,
            unit_ids=indices,
            unit=None,
            together=False,
        )

    @property
    def _most(self) -> int | None:
        return self._owner.max_physical_batch

    def _own(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """This process's records ``[R]``, its units, and each record's unit among them, ``[R]``."""
        which, shares = self._share
        if shares == 1:
            return self.indices, self.unit_ids, self._unit
        # In turn over the batch, so that all have equally much to do.
        unit_ids = self.unit_ids[which::shares]
        if self._unit is None:
            return self.indices[which::shares], unit_ids, None
        records = (self._unit % shares == which).nonzero()[:, 0]
        return self.indices[records], unit_ids, self._unit[records] // shares

    @contextmanager
    def same_random_numbers(self, place: tuple[int, int]) -> Iterator[None]:
        """Gives a chunk the same random numbers (dropout masks) in all passes.

        They come from the run's own randomness, not from torch's generator: that one's seed is
        often no secret, and who knows the masks sees what one record more does to all the others'.
        """
        now = RandomState(self._owner.parameters().values())
        torch.manual_seed(self._seed(place))
        try:
            yield
        finally:
            now.restore()

    def _seed(self, place: tuple[int, int]) -> int:
        named = f"{self._owner.draws_key(self.step)} {self._share} {place[0]}"
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


class PrivateChunk:
    """A physical part of a batch.

    Attributes:
        indices: The records' numbers, ``[R]``.
        unit_ids: Its units' numbers, ``[units]``.
    """

    def __init__(
        self,
        batch: PrivateBatch,
        owner: Owner,
        *,
        place: tuple[int, int],
        indices: Tensor,
        unit_ids: Tensor,
        unit: Tensor | None,
        together: bool,
    ) -> None:
        self._batch = batch
        self._owner = owner
        self._place = place
        self._unit = unit
        self._together = together
        self.indices = indices
        self.unit_ids = unit_ids

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

        def taken(run: _Run) -> PerSampleGradients:
            where = at
            if isinstance(at, Perturbation) and run.unit is not None:
                where = replace(at, index=run.unit.clamp(max=self.units - 1))
            together = None if run.together is None else run.unit
            with self._batch.same_random_numbers(self._place), run.normalised():
                return capture(run.model, run.losses, at=where, records=run.rows, together=together)

        run = self._run(rows)
        if run.rows == 1:
            return self._of_two(run, taken)
        gradients = taken(run)
        if run.unit is None or run.together is not None:
            return gradients
        return gradients.pool(run.unit, self.units)

    def _of_two(self, run: _Run, taken: Callable[[_Run], PerSampleGradients]) -> PerSampleGradients:
        """What is ``taken`` of a single row, from a batch in which it is twice.

        Matrix products of one row round otherwise than those of several: by itself, a record would
        have another gradient than beside others, and where sums cancel quite another one.
        """
        own = torch.arange(2, device=run.device)
        twice = replace(run, data=repeated(run.data, 2), rows=2, unit=own)
        if run.together is not None:
            twice = replace(twice, together=own)
        if run.weights is not None:
            twice = replace(twice, weights=run.weights.repeat(2))
        return taken(twice).select(own[:1])

    def hvp(self, vectors: Mapping[str, Tensor], *, rows: Rows | None = None) -> PerSampleGradients:
        """Its units' Hessians times vectors ``[units, *shape]``, or one ``[*shape]`` for all."""
        shapes = {name: p.shape for name, p in self._owner.parameters().items()}

        def by(unit: Tensor) -> dict[str, Tensor]:
            return {
                name: value if value.shape == shapes[name] else value[unit.to(value.device)]
                for name, value in vectors.items()
            }

        def taken(run: _Run) -> PerSampleGradients:
            own = vectors if run.unit is None else by(run.unit.clamp(max=self.units - 1))
            with self._batch.same_random_numbers(self._place), run.normalised():
                return hvp(run.model, run.losses, own, records=run.rows)

        run = self._run(rows)
        if run.rows == 1:
            return self._of_two(run, taken)
        products = taken(run)
        return products if run.unit is None else products.pool(run.unit, self.units)

    def _run(self, rows: Rows | None) -> _Run:
        loss, model = self._owner.loss, self._owner.model
        device = next(iter(self._owner.parameters().values())).device
        own = None if self._unit is None else self._unit.to(device)
        if rows is None:
            bucket = own if self._together else None
            return _Run(loss, model, self.data, self.records, own, bucket)
        record = rows.record.to(device)
        unit = record if own is None else own[record]
        together = record if rows.together else unit if self._together else None
        return _Run(loss, model, rows.data, len(record), unit, together, rows.weights)


@dataclass(frozen=True)
class _Run:
    """What the model is run on.

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
