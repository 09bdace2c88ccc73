"""``make_private`` and the object it returns: accounted steps in the user's own loop.

The model and the optimizer stay the user's own objects. Guarantees, by construction: batches come
from a Poisson sampler whose event is the one accounted; a step is charged, durably, before its
result can be seen; the noise scale is taken from the sensitivity that the clipping proves; records
that are not finite contribute zero; sums are divided by the public expected batch size.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from plumbline.gradients import KERNELS, Perturbation, PerSampleGradients, capture
from plumbline.mechanism.accountant import Accountant, EpsilonCurve, Relation
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.random_source import RandomSource, SecureSource, SeededSource
from plumbline.mechanism.release import GaussianQuery, Query, Sampling, StepRelease
from plumbline.mechanism.statement import Statement
from plumbline.sampling import PoissonSampler, UserSampler, chunks
from plumbline.training.answering import Answers
from plumbline.gradients.isolation import check_isolation
from plumbline.training.losses import BatchLoss, Loss, per_record
from plumbline.training.records import Collate, Records, records_of, to_device


class Method(Protocol):
    """What training needs of a method; ``plumbline.methods`` has them."""

    name: str

    @property
    def unbounded_reason(self) -> str | None:
        """Why the method has no guarantee, or None."""

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        """The questions of one step."""

    def step(self, batch: Any) -> Any:
        """The step's program: yields questions, receives answers, returns the update."""

    def state_dict(self) -> dict[str, Any]:
        """What it carries from step to step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up such a state."""


class BatchRefused(RuntimeError):
    """A step was asked for with a batch that the sampler did not just draw."""


@dataclass(eq=False)
class PrivateBatch:
    """A step's Poisson batch, possibly empty.

    Attributes:
        step: The number of the step it is for.
        indices: The records' numbers, ``[R]``. Who is in a batch is private: do not publish it.
    """

    step: int
    indices: Tensor
    _owner: Private = field(repr=False)
    _groups: Tensor | None = field(repr=False)
    _units: int = field(repr=False)

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

    def chunks(self) -> Iterator[PrivateChunk]:
        """The physical chunks, in order; every call starts again."""
        places = torch.arange(len(self.indices))
        for part in chunks(places, self._owner.max_physical_batch, self._groups):
            groups = None if self._groups is None else self._groups[part]
            if groups is not None:
                groups = groups - groups[0]
            yield PrivateChunk(self._owner, self.indices[part], groups)

    def zeros(self) -> dict[str, Tensor]:
        """A zero for every trainable parameter: the sum over an empty batch."""
        return {name: torch.zeros_like(p) for name, p in self._owner.parameters().items()}


class PrivateChunk:
    """A physical part of a batch."""

    def __init__(self, owner: Private, indices: Tensor, groups: Tensor | None) -> None:
        self._owner = owner
        self._groups = groups
        self.indices = indices

    @property
    def units(self) -> int:
        """How many records (or users) it has."""
        return len(self.indices) if self._groups is None else int(self._groups[-1]) + 1

    @property
    def sensitive_features(self) -> Tensor | None:
        """The group of each record, ``[R]``, if groups were given."""
        features = self._owner.sensitive_features
        return None if features is None else features[self.indices]

    @cached_property
    def data(self) -> Any:
        """The records, as the loss sees them."""
        return self._owner.fetch(self.indices)

    def losses(self) -> Tensor:
        """Each record's loss, ``[R]``."""
        return self._owner.loss(self._owner.model, self.data)

    def capture(self, at: Perturbation | Mapping[str, Tensor] | None = None) -> PerSampleGradients:
        """The gradients of its units: records, or users with all of their records."""
        model = self._owner.model
        gradients = capture(model, self.losses, at=at, records=len(self.indices))
        return gradients if self._groups is None else gradients.pool(self._groups, self.units)


class Private:
    """A model in private training; made by ``make_private``.

    Attributes:
        model: The user's model.
        optimizer: The user's optimizer.
        plan: The budget made exact: noise, steps, sampling rate.
        steps_done: How many steps have been released.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        records: Records,
        *,
        loss: BatchLoss,
        method: Method,
        plan: Plan,
        source: RandomSource,
        sampler: PoissonSampler,
        sensitive_features: Tensor | None,
        max_physical_batch: int | None,
        ledger: Ledger | None,
        run: str,
        deterministic: bool,
        not_covered: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.method = method
        self.loss = loss
        self.plan = plan
        self.ledger = ledger
        self.run = run
        self.deterministic = deterministic
        self.sensitive_features = sensitive_features
        self.max_physical_batch = max_physical_batch
        self.not_covered = tuple(not_covered)
        self.steps_done = 0
        self.attempt = 0
        self.charged = 0
        self._records = records
        self._source = source
        self._sampler = sampler
        self._answers: Answers | None = None
        self._pending: PrivateBatch | None = None
        self._isolated = False
        self._curve = EpsilonCurve(
            plan.release,
            steps=plan.steps,
            delta=plan.delta,
            accountant=plan.accountant,
            relation=plan.relation,
        )

    def __len__(self) -> int:
        """The number of steps that remain."""
        return max(0, self.plan.steps - self.steps_done)

    def __iter__(self) -> Iterator[PrivateBatch]:
        """The batches of the remaining steps; a batch that was not stepped on is drawn again."""
        while self.steps_done < self.plan.steps:
            before = self.steps_done
            yield self._draw()
            if self.steps_done == before and self._pending is None:
                return

    def step(self, batch: PrivateBatch) -> None:
        """One accounted update: asks, charges, adds noise, and lets the optimizer step.

        Raises:
            BatchRefused: If the batch is not the one that was drawn for this step.
            LedgerError: If the step could not be charged; nothing was released then.
        """
        self._accept(batch)
        if not self._isolated and len(batch):
            chunk = next(batch.chunks())
            check_isolation(self.model, lambda data: self.loss(self.model, data), chunk.data)
            self._isolated = True
        self._apply(self._released(batch))
        self.steps_done += 1
        self._sampler.step = self.steps_done

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def fetch(self, indices: Tensor) -> Any:
        """Some records, as the loss sees them, on the model's device."""
        device = next(iter(self.parameters().values())).device
        return to_device(self._records.fetch(indices), device)

    def epsilon(self, *, exact: bool = False) -> float:
        """Epsilon spent so far at the budget's delta: from a cached curve, rounded up.

        Args:
            exact: Compute it for exactly the steps charged, which takes up to a second or two.
        """
        steps = max(self.charged, self.steps_done)
        if steps == 0:
            return 0.0
        if exact:
            return self._statement(steps).epsilon
        return self._curve(steps)

    def statement(self, format: str = "text") -> str:
        """The guarantee in words (``"text"``) or for programs (``"json"``), with its assumptions."""
        statement = self._statement(max(self.charged, self.steps_done))
        if format == "json":
            return statement.json()
        if format != "text":
            raise ValueError(f"format is {format!r}; it must be 'text' or 'json'.")
        return statement.text()

    def close(self) -> None:
        """Lets go of the noise prepared ahead; the ledger stays the caller's."""
        if self._answers is not None:
            self._answers.close()
            self._answers = None

    def _draw(self) -> PrivateBatch:
        units = self._sampler.indices(self.steps_done)
        groups = None
        indices = units
        if isinstance(self._sampler, UserSampler):
            indices, groups = self._sampler.records_of(units)
        self._pending = PrivateBatch(self.steps_done, indices, self, groups, len(units))
        return self._pending

    def _accept(self, batch: PrivateBatch) -> None:
        if batch is not self._pending or not isinstance(batch, PrivateBatch):
            raise BatchRefused(
                "This batch was not drawn by this object's sampler for this step (or was stepped "
                "on already), so the accounting does not hold for it. Step once on each batch "
                "that `for batch in private` gives."
            )
        self._pending = None

    def _released(self, batch: PrivateBatch) -> dict[str, Tensor]:
        declared = self.plan.release.queries
        program = self.method.step(batch)
        place = 0
        try:
            query = next(program)
            while True:
                if place == 0:
                    self._charge(batch.step, query)
                answer = self._answering().answer(query, declared, batch.step, place)
                place += 1
                query = program.send(answer)
        except StopIteration as end:
            if place != len(declared):
                raise RuntimeError(
                    f"The method '{self.method.name}' asked {place} questions and declared "
                    f"{len(declared)}."
                ) from None
            update: dict[str, Tensor] = end.value
            return update

    def _charge(self, step: int, query: Query) -> None:
        if self.ledger is not None:
            position = None
            if not self._source.secure and self.attempt == 0:
                position = (step, _digest(query))
            self.ledger.charge(
                self.plan.release.to_dict(), run=self.run, step=step, noise_position=position
            )
        self.charged += 1

    def _answering(self) -> Answers:
        if self._answers is None:
            numel = sum(p.numel() for p in self.parameters().values())
            self._answers = Answers(self._source, numel, self.plan.steps, self.attempt)
        return self._answers

    def _apply(self, update: dict[str, Tensor]) -> None:
        parameters = self.parameters()
        before = {name: p.grad for name, p in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.grad = update[name].to(parameter.dtype)
            self.optimizer.step()
        finally:
            for name, parameter in parameters.items():
                parameter.grad = before[name]

    def _statement(self, steps: int) -> Statement:
        constants: dict[str, float | int | str] = {
            "expected batch size": self.plan.expected_batch_size,
            "method": self.method.name,
        }
        return Statement.for_run(
            self.plan,
            steps_done=steps,
            noise_source=self._source.describe(),
            seeded=not self._source.secure,
            unit="user" if isinstance(self._sampler, UserSampler) else "record",
            public_constants=constants,
            not_covered=self.not_covered,
        )


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Any,
    *,
    loss: Loss,
    method: Method,
    budget: Budget,
    accountant: Accountant = "pld",
    relation: Relation = "add_remove",
    sensitive_features: Sequence[int] | Tensor | None = None,
    max_physical_batch: int | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    ledger: Ledger | None = None,
    user_ids: Sequence[Any] | Tensor | None = None,
    collate: Collate | None = None,
) -> Private:
    """Private training of the user's own model, in the user's own loop.

    Args:
        model: The model; it is not wrapped, renamed or replaced.
        optimizer: Any torch optimizer of its parameters (LBFGS and SparseAdam are refused).
        dataset: Tensors with one row per record, a map-style data set, or a Hugging Face data set
            in torch format.
        loss: One loss per record: of (output, target), or of (model, batch) when marked with
            ``batch_loss``.
        method: From ``plumbline.methods``.
        budget: How much privacy may be spent, on how many steps.
        accountant: ``"pld"`` or ``"rdp"``.
        relation: Neighbouring data sets: ``"add_remove"`` or ``"replace_one"``.
        sensitive_features: The group of each record, ``[n]``, for methods and reports that need it.
        max_physical_batch: The most records in memory at once; larger batches come in chunks.
        seed: Makes sampling and noise reproducible. The statement then says that who knows the
            seed knows the noise. By default the randomness is cryptographically secure.
        deterministic: Pins the gradient kernels, so that equal runs are bit-identical.
        ledger: Where steps are charged, durably, before they are released.
        user_ids: The user of each record, ``[n]``: makes a user with all of their records the unit
            of privacy.
        collate: How a list of records of a map-style data set becomes a batch.

    Raises:
        BudgetError: If the budget does not fit the data or cannot be met.
    """
    _check_optimizer(optimizer, model)
    records = records_of(dataset, collate)
    source: RandomSource = SecureSource() if seed is None else SeededSource(seed)
    units = len(records)
    if user_ids is not None:
        if len(user_ids) != len(records):
            raise ValueError(
                f"user_ids has {len(user_ids)} entries for {len(records)} records; give one each."
            )
        units = UserSampler(user_ids, 1.0, source).records
    method = copy.deepcopy(method)

    def release_at(noise_multiplier: float, sampling: Sampling) -> StepRelease:
        return StepRelease(
            sampling=sampling,
            queries=method.queries(noise_multiplier),
            unbounded_reason=method.unbounded_reason,
        )

    plan = budget.resolve(units, release_at=release_at, accountant=accountant, relation=relation)
    sampler = (
        PoissonSampler(units, plan.sampling_rate, source)
        if user_ids is None
        else UserSampler(user_ids, plan.sampling_rate, source)
    )
    if deterministic:
        KERNELS.measure = False
    return Private(
        model,
        optimizer,
        records,
        loss=per_record(loss),
        method=method,
        plan=plan,
        source=source,
        sampler=sampler,
        sensitive_features=_features(sensitive_features, len(records)),
        max_physical_batch=max_physical_batch,
        ledger=ledger,
        run=_run_id(seed, plan, method, units),
        deterministic=deterministic,
    )


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        reason = (
            "evaluates the loss several times a step, each of which would have to be charged"
            if isinstance(optimizer, torch.optim.LBFGS)
            else "needs sparse gradients, and a private gradient has noise everywhere"
        )
        raise ValueError(
            f"{type(optimizer).__name__} {reason}. Use SGD, Adam or another optimizer that takes "
            "one dense gradient a step."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if missing:
        raise ValueError(
            f"The optimizer does not hold the trainable parameter '{missing[0]}' "
            f"({len(missing)} in all). Build it from model.parameters(), or freeze what is not to "
            "be trained: a parameter outside would be noised and paid for, but never updated."
        )


def _features(features: Sequence[int] | Tensor | None, records: int) -> Tensor | None:
    if features is None:
        return None
    values = torch.as_tensor(features)
    if values.shape != (records,):
        raise ValueError(
            f"sensitive_features has shape {tuple(values.shape)}; give the group of each of the "
            f"{records} records."
        )
    return values


def _run_id(seed: int | None, plan: Plan, method: Method, units: int) -> str:
    """Random for a secure run; for a seeded one, a digest of all that decides its noise."""
    if seed is None:
        return SecureSource().stream("run").bytes(8).hex()
    facts = (seed, plan.noise_multiplier, plan.steps, plan.sampling_rate, method.name, units)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _digest(query: Query) -> str:
    digest = hashlib.blake2b(digest_size=16)
    value = query.value if not isinstance(query.value, Tensor) else {"value": query.value}
    for name, tensor in value.items():
        digest.update(name.encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().view(-1).numpy()).cast("B"))
    return digest.hexdigest()
