"""A step's batch as a method sees it: the records that were drawn, in physical chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from plumbline.evaluation import Rows
from plumbline.gradients import (
    Isolation,
    PerSampleGradients,
    Perturbation,
    capture,
    each_record,
    hvp,
    own_statistics,
)
from plumbline.gradients.programs import Programs
from plumbline.gradients.summation import MOST_RECORDS
from plumbline.mechanism.calibration import Plan
from plumbline.record_errors import T, looked_up
from plumbline.record_random import Draws, OwnGenerators
from plumbline.sampling import chunks
from plumbline.training.losses import BatchLoss
from plumbline.training.step_losses import StepLosses


class Owner(Protocol):
    """What a batch needs of the ``Private`` that drew it."""

    model: nn.Module
    loss: BatchLoss
    plan: Plan
    sensitive_features: Tensor | None
    record_weights: Tensor | None
    max_physical_batch: int | None
    isolation: Isolation
    generators: OwnGenerators
    programs: Programs | None

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""

    def fetch(self, indices: Tensor, step: int) -> Any:
        """Some records, as the loss of a step sees them, on the model's device."""

    def draws_key(self, step: int) -> str:
        """The key of the records' own random numbers in a step."""


_NO_TENSORS = (
    "A batch of a private run is not a tuple of tensors. Write `for batch in private:` and in it "
    "`private.step(batch)`, which fetches the records itself and moves them to the model's device; "
    "`private.fetch(batch.indices)` gives them, if there are any."
)


@dataclass(eq=False)
class PrivateBatch:
    """A step's Poisson batch, possibly empty.

    Where several processes make a run, each has the whole batch and takes its share of the units in
    ``chunks``, possibly none: every unit, with all of its records, is in one process's share.

    Attributes:
        step: The number of the step it is for.
        indices: The records' numbers, ``[R]``. Who is in a batch is private: do not publish it.
        unit_ids: The numbers of its units, ``[N]``: records, or users, or buckets of them.
        losses: The losses that passes over its records gave. Private, too.
    """

    step: int
    indices: Tensor
    unit_ids: Tensor
    _owner: Owner = field(repr=False)
    _unit: Tensor | None = field(default=None, repr=False)  # of each record, [R], ascending
    _together: bool = field(default=False, repr=False)
    _share: tuple[int, int] = field(default=(0, 1), repr=False)  # which one, of how many
    losses: StepLosses = field(default_factory=StepLosses, repr=False)

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> NoReturn:
        raise TypeError(_NO_TENSORS)

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(_NO_TENSORS)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"A batch has no {name!r}. {_NO_TENSORS}")

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

    @property
    def whole(self) -> bool:
        """Whether it is one chunk in one process, whichever records are drawn."""
        return self._most is None and self._share[1] == 1

    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name."""
        return self._owner.parameters()

    def chunks(self, limit: int | None = None) -> Iterator[PrivateChunk]:
        """The physical chunks, in order, of at most ``limit`` records; every call starts again."""
        most = self._most
        if limit is not None:
            most = limit if most is None else min(most, limit)
        indices, unit_ids, units = self._own()
        place = 0
        for some in chunks(indices, most, units):
            here = slice(place, place + len(some))
            first, last, own = here.start, here.stop, None
            if units is not None:
                first, last = int(units[here][0]), int(units[here][-1]) + 1
                own = units[here] - first
            yield PrivateChunk(some, unit_ids[first:last], self, place, own, self._together)
            place = here.stop

    def zeros(self) -> dict[str, Tensor]:
        """A zero for every trainable parameter: the sum over an empty batch."""
        return {name: torch.zeros_like(p) for name, p in self._owner.parameters().items()}

    def draws(self, purpose: str) -> Draws:
        """Random numbers of each unit's own, the same whenever they are asked for in the step."""
        return Draws(self.unit_ids, lambda: f"{purpose} {self.key}")

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

    @property
    def _most(self) -> int | None:
        return self._owner.max_physical_batch

    def _own(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """This process's records ``[R]``, its units, and each record's unit among them, ``[R]``."""
        if len(self.unit_ids) > MOST_RECORDS:
            raise ValueError(
                f"The batch has more records than the {MOST_RECORDS:,} for which the rounding of "
                "a sum is proven. Use a smaller expected batch size."
            )
        which, shares = self._share
        if shares == 1:
            return self.indices, self.unit_ids, self._unit
        # In turn over the batch, so that all have equally much to do.
        unit_ids = self.unit_ids[which::shares]
        if self._unit is None:
            return self.indices[which::shares], unit_ids, None
        records = (self._unit % shares == which).nonzero()[:, 0]
        return self.indices[records], unit_ids, self._unit[records] // shares

    @cached_property
    def key(self) -> str:
        """The key of the records' own random numbers in this step."""
        return self._owner.draws_key(self.step)

    def with_same_random_numbers(self, compute: Callable[[], T]) -> T:
        """A pass over records, with global generators that start at the step's own seed.

        It does not depend on the records, nor on how many there are. Inside a capture, torch's own
        random functions take each record's numbers instead.
        """
        return self._owner.generators.run(compute, lambda: f"model {self.key}")


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


@dataclass(eq=False)
class PrivateChunk:
    """A physical part of a batch.

    Attributes:
        indices: The records' numbers, ``[R]``.
        unit_ids: Its units' numbers, ``[units]``.
    """

    indices: Tensor
    unit_ids: Tensor
    _batch: PrivateBatch = field(repr=False)
    _place: int = field(repr=False)  # of its first record, in the batch
    _unit: Tensor | None = field(default=None, repr=False)  # of each record, [R], ascending
    _together: bool = field(default=False, repr=False)

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

    @property
    def weights(self) -> Tensor | None:
        """By how much each record counts once it is clipped; pooled units are refused earlier."""
        weights = self._owner.record_weights
        return None if weights is None else weights[self.indices]

    @cached_property
    def data(self) -> Any:
        """The records, as the loss sees them."""
        return self._owner.fetch(self.indices, self.step)

    def losses(self) -> Tensor:
        """Each record's loss, ``[R]``, from one pass over them all."""
        return self._passed(lambda: self._owner.loss(self._owner.model, self.data))

    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name."""
        return self._owner.parameters()

    def outputs(self) -> Any:
        """The model's outputs for the records, where the loss is one of output and target."""
        model, loss, random = self._owner.model, self._owner.loss, self.draws("model")
        return self._passed(
            lambda: each_record(lambda one: loss.outputs(model, one)[0], self.data, random=random)
        )

    def draws(self, purpose: str, *, of: Literal["records", "units"] = "records") -> Draws:
        """Random numbers of each record's (or unit's) own, the same in every pass of the step."""
        numbers = self.indices if of == "records" else self.unit_ids
        return Draws(numbers, lambda: f"{purpose} {self._batch.key}")

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
                where = replace(at, index=one.unit)

            def run() -> PerSampleGradients:
                return capture(
                    one.model, one.loss, one.batch, where,
                    rows=one.company, random=one.draws, isolation=self._owner.isolation,
                )  # fmt: skip

            def with_own_numbers() -> PerSampleGradients:
                return self._batch.with_same_random_numbers(run)

            programs, drawn = self._owner.programs, self._owner.generators.used
            if programs is None or drawn or one.company is not None:
                return with_own_numbers()
            return programs.run(with_own_numbers, one.loss, one.batch, where, one.records)

        return self._naming(lambda: self._by_unit(self._pass(rows), taken))

    def hvp(self, vectors: Mapping[str, Tensor], *, rows: Rows | None = None) -> PerSampleGradients:
        """Its units' Hessians times vectors ``[units, *shape]``, or one ``[*shape]`` for all."""
        shapes = {name: p.shape for name, p in self._owner.parameters().items()}

        def by(unit: Tensor) -> dict[str, Tensor]:
            return {
                name: value if value.shape == shapes[name] else value[unit.to(value.device)]
                for name, value in vectors.items()
            }

        def taken(one: _Pass) -> PerSampleGradients:
            own = vectors if one.unit is None else by(one.unit)

            def run() -> PerSampleGradients:
                return hvp(
                    one.model, one.loss, one.batch, own,
                    rows=one.company, random=one.draws, isolation=self._owner.isolation,
                )  # fmt: skip

            return self._batch.with_same_random_numbers(run)

        return self._naming(lambda: self._by_unit(self._pass(rows), taken))

    def _passed(self, compute: Callable[[], T]) -> T:
        """What a pass over its records gives, with the step's own random numbers."""
        return self._naming(lambda: self._batch.with_same_random_numbers(compute))

    def _naming(self, compute: Callable[[], T]) -> T:
        """What it gives; a class that is out of range is named by its record alone."""
        owner = self._owner

        def alone(place: int) -> Tensor:
            return owner.loss(owner.model, owner.fetch(self.indices[place : place + 1], self.step))

        return looked_up(compute, self.indices, alone)

    def _by_unit(
        self, whole: _Pass, taken: Callable[[_Pass], PerSampleGradients]
    ) -> PerSampleGradients:
        """What is ``taken`` of every unit."""
        if whole.together is not None:
            with own_statistics(whole.model):
                return _together(whole, self.units, taken, alone=self._together)
        gradients = _of_two(whole, taken) if whole.rows == 1 else taken(whole)
        self._batch.losses.note(self._place, gradients.losses, self.records)
        return gradients if whole.unit is None else gradients.pool(whole.unit, self.units)

    def _pass(self, rows: Rows | None) -> _Pass:
        device = next(iter(self._owner.parameters().values())).device
        own = None if self._unit is None else self._unit.to(device)
        draws = self.draws("model")
        if rows is None:
            together = own if self._together else None
            return _Pass(self._owner, (self.data, None), self.records, own, together, draws)
        record = rows.record.to(device)
        unit = record if own is None else own[record]
        together = record if rows.together else unit if self._together else None
        weights = None if rows.weights is None else rows.weights.to(device)
        return _Pass(
            self._owner, (rows.data, weights), len(record), unit, together,
            draws.of_rows(rows.record),
        )  # fmt: skip


@dataclass(frozen=True)
class _Pass:
    """One pass of rows through the model.

    Attributes:
        batch: The rows, and by how much each one's loss counts (``[rows]``; None for fully).
        rows: How many rows there are.
        unit: The unit of each row (of each ``company`` rows), ``[rows]``; None where each is one.
        together: Which rows BatchNorm takes together, ``[rows]``: those of a record, or all of a
            bucket's; None for BatchNorm as it is.
        draws: Each row's random numbers.
        company: How many adjacent rows are one record for the capture; None for one without
            company.
    """

    owner: Owner
    batch: tuple[Any, Tensor | None]
    rows: int
    unit: Tensor | None
    together: Tensor | None
    draws: Draws
    company: int | None = None

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.owner.model

    @property
    def records(self) -> int:
        """How many records the capture is of."""
        return self.rows // (self.company or 1)

    def loss(self, model: nn.Module, batch: tuple[Any, Tensor | None]) -> Tensor:
        """Each row's loss, as much as it counts."""
        data, weights = batch
        losses = self.owner.loss(model, data)
        if weights is None:
            return losses
        weights = weights.to(losses)
        return torch.where(weights == 0, 0, losses * weights)

    def select(self, index: Tensor, unit: Tensor | None, company: int | None) -> _Pass:
        """Some rows (``[n]``); ``unit`` is that of each ``company`` of them."""
        batch = tree_map(
            lambda leaf: leaf[index.to(leaf.device)] if _has_rows(leaf) else leaf, self.batch
        )
        draws = self.draws.select(index[:: company or 1].cpu())
        return _Pass(self.owner, batch, len(index), unit, None, draws, company)


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _of_two(one: _Pass, taken: Callable[[_Pass], PerSampleGradients]) -> PerSampleGradients:
    """What is ``taken`` of a single record, from a batch that has it twice.

    Matrix products of one row are rounded differently from those of several. A record alone would
    have another gradient than beside others, and quite another one where sums cancel.
    """
    index = torch.arange(one.rows).repeat(2)
    unit = torch.zeros(2, dtype=torch.long) if one.unit is None else one.unit.repeat(2)
    twice = one.select(index, unit, one.company)
    return taken(twice).select(torch.zeros(1, dtype=torch.long))


def _together(
    whole: _Pass, units: int, taken: Callable[[_Pass], PerSampleGradients], *, alone: bool
) -> PerSampleGradients:
    """What is ``taken`` of units whose rows go through the model together, in order.

    Records with company of their own have equally many rows and are run at once. Buckets have not,
    and each is run alone: beside others, the rounding of one would depend on how many there are.
    """
    assert whole.together is not None
    counts = torch.bincount(whole.together)
    starts = counts.cumsum(0) - counts

    def of(members: Tensor) -> PerSampleGradients:
        size = int(counts[members[0]])
        index = (starts[members][:, None] + torch.arange(size, device=starts.device)).flatten()
        unit = members if whole.unit is None else whole.unit[index[::size]]
        one = whole.select(index, unit, size)
        return _of_two(one, taken) if len(members) == 1 else taken(one)

    members = torch.arange(len(counts), device=counts.device)
    if alone:
        gradients = PerSampleGradients.stacked([of(one) for one in members[:, None]])
    else:
        gradients = of(members)
    if whole.unit is None or len(counts) == units:
        return gradients
    return gradients.pool(whole.unit[starts], units)
