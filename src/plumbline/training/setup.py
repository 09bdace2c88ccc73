"""What the user gave, checked: all that ``make_private`` and ``resume`` have in common.

A ``Setup`` makes the run's plan and lists its settings as plain facts, by which a checkpoint and a
ledger recognise the run.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from plumbline.checks import check_decay
from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.random_source import RandomSource
from plumbline.mechanism.release import Composition, GaussianQuery, Sampling, StepRelease
from plumbline.sampling import PoissonSampler, UserSampler, group_by_user
from plumbline.training.losses import BatchLoss, Loss, per_record
from plumbline.training.public import PublicData
from plumbline.training.records import Collate, Records, records_of
from plumbline.training.run_identity import Facts, facts_of


class Method(Protocol):
    """What training needs of a method; ``plumbline.methods`` has them.

    A method that keeps state of single records offers ``private_state_dict()`` and
    ``load_private_state_dict(state)`` besides; a checkpoint keeps that in a file marked PRIVATE.
    """

    name: str

    @property
    def needs_groups(self) -> bool:
        """Whether it needs ``sensitive_features``."""

    @property
    def composition(self) -> Composition:
        """How its questions are charged."""

    @property
    def together(self) -> bool:
        """Whether it lets BatchNorm take some rows together, and answers for these itself."""

    @property
    def unbounded_reason(self) -> str | None:
        """Why the method has no guarantee, or None."""

    @property
    def one_process_reason(self) -> str | None:
        """Why several processes cannot share the records of a step, or None."""

    @property
    def reads_released(self) -> bool:
        """Whether it computes with released gradients as whole vectors."""

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        """The questions of one step."""

    def see(self, chunk: Any) -> Any:
        """A chunk as the model is to see it."""

    def step(self, batch: Any) -> Any:
        """The step's program: yields questions, receives answers, returns the update."""

    def state_dict(self) -> dict[str, Any]:
        """What it carries from step to step."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """A run as the user described it; the attributes are the arguments of ``make_private``."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    records: Records
    loss: BatchLoss
    method: Method
    budget: Budget
    accountant: Accountant
    relation: Relation
    sensitive_features: Tensor | None
    max_physical_batch: int | None
    seed: int | None
    deterministic: bool
    ledger: Ledger | None
    user_ids: Sequence[Any] | Tensor | None
    public: PublicData | None = None
    not_covered: tuple[str, ...] = ()
    averaging: float | None = None
    before: tuple[StepRelease, ...] = ()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        *,
        loss: Loss,
        method: Method,
        budget: Budget,
        accountant: Accountant,
        relation: Relation,
        sensitive_features: Sequence[int] | Tensor | None,
        max_physical_batch: int | None,
        seed: int | None,
        deterministic: bool,
        ledger: Ledger | None,
        user_ids: Sequence[Any] | Tensor | None,
        collate: Collate | None,
        public: PublicData | None = None,
        averaging: float | None = None,
        before: Sequence[StepRelease] = (),
    ) -> Setup:
        """Checks the arguments of ``make_private``."""
        _check_kinds(method, ledger)
        _refuse_wrapped(model)
        _check_optimizer(optimizer, model)
        _refuse_narrow(model)
        records = records_of(dataset, collate)
        if user_ids is not None and len(user_ids) != len(records):
            raise ValueError(
                f"user_ids has {len(user_ids)} entries for {len(records)} records; give one each."
            )
        if method.needs_groups and sensitive_features is None:
            raise ValueError(
                f"The method '{method.name}' treats groups of records differently and needs the "
                "group of each: give sensitive_features, one value for every record."
            )
        if max_physical_batch is not None and not (
            type(max_physical_batch) is int and max_physical_batch >= 1
        ):
            raise ValueError(
                f"max_physical_batch is {max_physical_batch!r}; it must be a whole number of at "
                "least 1, or None to process every batch in one piece."
            )
        if averaging is not None:
            check_decay("averaging", averaging)
        if before and user_ids is not None:
            raise ValueError(
                "before is given beside user_ids: what was released earlier bounds what one record "
                "can do, not what a user with several can. Train without one of the two."
            )
        return cls(
            model=model,
            optimizer=optimizer,
            records=records,
            loss=per_record(loss),
            method=copy.deepcopy(method),
            budget=budget,
            accountant=accountant,
            relation=relation,
            sensitive_features=_features(sensitive_features, len(records)),
            max_physical_batch=max_physical_batch,
            seed=seed,
            deterministic=deterministic,
            ledger=ledger,
            user_ids=user_ids,
            public=public,
            not_covered=tuple(getattr(dataset, "not_covered", ())),
            averaging=averaging,
            before=tuple(before),
        )

    @cached_property
    def units(self) -> int:
        """The number of records, or of users where they are the unit of privacy."""
        return len(self.records) if self.user_ids is None else group_by_user(self.user_ids).count

    @cached_property
    def facts(self) -> Facts:
        """The settings that make this run this run, as plain values by name.

        To be asked for before the first step: a method's own state is not a setting.
        """
        facts: Facts = {
            "the number of records": len(self.records),
            "the unit of privacy": "record" if self.user_ids is None else "user",
            "the number of units": self.units,
            "relation": self.relation,
            "accountant": self.accountant,
            "a seed given": self.seed is not None,
            "deterministic": self.deterministic,
            **facts_of(self.optimizer.defaults, "optimizer"),
            "optimizer": type(self.optimizer).__qualname__,
            **({} if self.public is None else self.public.facts),
            **(facts_of(self.before, "before") if self.before else {}),
        }
        return facts | facts_of(self.budget, "budget") | facts_of(self.method, "method")

    def plan(self, noise_multiplier: float | None = None) -> Plan:
        """The budget made exact; with a noise multiplier, nothing is calibrated."""
        budget = self.budget
        if noise_multiplier is not None:
            budget = dataclasses.replace(budget, epsilon=None, noise_multiplier=noise_multiplier)
        plan = budget.resolve(
            self.units,
            release_at=self._release,
            accountant=self.accountant,
            relation=self.relation,
            before=self.before,
        )
        return dataclasses.replace(plan, budget=self.budget)

    def sampler(self, rate: float, source: RandomSource) -> PoissonSampler:
        """The sampler of the run's units."""
        if self.user_ids is None:
            return PoissonSampler(self.units, rate, source)
        return UserSampler(self.user_ids, rate, source)

    def _release(self, noise_multiplier: float, sampling: Sampling) -> StepRelease:
        return StepRelease(
            sampling=sampling,
            queries=self.method.queries(noise_multiplier),
            unbounded_reason=self.method.unbounded_reason,
            composition=self.method.composition,
        )


def _check_kinds(method: Any, ledger: Any) -> None:
    if not hasattr(method, "queries"):
        given = f"the function {method.__name__}" if callable(method) else repr(method)
        name = method if isinstance(method, str) else getattr(method, "__name__", "dpsgd")
        raise TypeError(
            f"method is {given}; it must be a method that was made with its settings, such as "
            f"plumbline.methods.{name}(). `plumbline methods` lists them all."
        )
    if ledger is not None and not isinstance(ledger, Ledger):
        raise TypeError(
            f"ledger is {ledger!r}; it must be an open ledger, such as "
            f"plumbline.Ledger.open({ledger!r})."
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
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            "The model has no trainable parameter: requires_grad is False for all of them. Free "
            "what is to be trained, such as the last layer's, with requires_grad_(True)."
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [
        name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held
    ]
    if missing:
        raise ValueError(
            f"The optimizer does not hold the trainable parameter '{missing[0]}' "
            f"({len(missing)} in all). Build it from model.parameters(), or freeze what is not to "
            "be trained: a parameter outside would be noised and paid for, but never updated."
        )


def _refuse_narrow(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype.itemsize < 4:
            raise ValueError(
                f"The trainable parameter '{name}' is of type {parameter.dtype}: a sum of clipped "
                "gradients in so few digits is rounded by more than one record may change it. Keep "
                "trainable parameters in float32 (model.float()), and compute with torch.autocast."
            )


def _refuse_wrapped(model: nn.Module) -> None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            "The model is wrapped in DistributedDataParallel, which adds up gradients before they "
            "can be clipped. Give the plain module, model.module, and build the optimizer from "
            "it: make_private shares the records among the processes by itself."
        )
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise ValueError(
            "The model is wrapped in FullyShardedDataParallel, which flattens parameters. Shard it "
            "with torch.distributed.fsdp.fully_shard instead, which leaves them as they are."
        )


def _features(features: Any, records: int) -> Tensor | None:
    if features is None:
        return None
    if len(features) and isinstance(features[0], str):
        raise TypeError(
            f"sensitive_features has words, such as {features[0]!r}; give each record's group as a "
            "whole number, as pandas.factorize(...)[0] makes them."
        )
    values = torch.as_tensor(features)
    if values.shape != (records,):
        raise ValueError(
            f"sensitive_features has shape {tuple(values.shape)}; give the group of each of the "
            f"{records} records."
        )
    return values
