"""What the user gave, checked.

A ``Setup`` plans the run, and lists its settings as plain facts by which a checkpoint and a ledger
recognise the run.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor, nn

from plumbline.checks import check_decay
from plumbline.gradients import Isolation
from plumbline.gradients.opaque import (
    refuse_anomaly_detection,
    refuse_autocast,
    refuse_gradient_hooks,
    refuse_opaque,
)
from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.random_source import RandomSource
from plumbline.mechanism.release import StepRelease
from plumbline.methods.base import Method
from plumbline.noise import Banded
from plumbline.repeated_records import refuse_repeated
from plumbline.sampling import Parts, PoissonSampler, UserSampler, group_by_user
from plumbline.training.losses import BatchLoss, Loss, per_record
from plumbline.training.public import PublicData
from plumbline.training.records import Collate, Records, records_of
from plumbline.training.run_identity import Facts, facts_of
from plumbline.training.stacking import PadTo
from plumbline.training.worker_stream import WorkerSettings
from plumbline.transformer_masks import learn_mask


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """A run as the user described it: the arguments of ``plumbline.make_private``, checked.

    A data loader is given by its parts (``loaders``): the data set, ``workers``, and ``replaced``,
    sentences on what the accounting replaces.

    Raises:
        ValueError: If the arguments do not fit each other; the message says what to change.
        TypeError: If one of them is of another kind.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    dataset: Any
    loss: Loss
    method: Method
    budget: Budget
    accountant: Accountant = "pld"
    relation: Relation = "add_remove"
    sensitive_features: Sequence[int] | Tensor | None = None
    record_weights: Sequence[float] | Tensor | None = None
    max_physical_batch: int | None = None
    isolation: Isolation = "vmap"
    seed: int | None = None
    deterministic: bool = False
    ledger: Ledger | None = None
    user_ids: Sequence[Any] | Tensor | None = None
    collate: Collate | None = None
    pad_to: PadTo | None = None
    public: PublicData | None = None
    averaging: float | None = None
    noise: Banded | None = None
    before: Sequence[StepRelease] = ()
    checkpoint: str | os.PathLike[str] | None = None
    schedulers: Sequence[Any] = ()
    workers: WorkerSettings | None = None
    replaced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_kinds(self.method, self.ledger)
        refuse_autocast()
        refuse_anomaly_detection()
        _refuse_wrapped(self.model)
        refuse_opaque(self.model)
        refuse_opaque(self.loss, "The loss")
        refuse_gradient_hooks(self.model, self.isolation)
        _check_optimizer(self.optimizer, self.model)
        _refuse_narrow(self.model)
        records = len(self.records)
        if self.user_ids is None:
            refuse_repeated(self.dataset)
        elif len(self.user_ids) != records:
            raise ValueError(
                f"user_ids has {len(self.user_ids)} entries for {records} records; give one each."
            )
        if self.method.needs_groups and self.sensitive_features is None:
            raise ValueError(
                f"The method '{self.method.name}' treats groups of records differently and needs "
                "the group of each: give sensitive_features, one value for every record."
            )
        _check_weighable(self)
        most = self.max_physical_batch
        if most is not None and not (type(most) is int and most >= 1):
            raise ValueError(
                f"max_physical_batch is {most!r}; it must be a whole number of at least 1, or None "
                "to process every batch in one piece."
            )
        if self.isolation not in get_args(Isolation):
            raise ValueError(
                f"isolation is {self.isolation!r}; it must be 'vmap' (all records at once, kept "
                "apart by torch.vmap) or 'loop' (one record after the other, which is slower)."
            )
        if self.averaging is not None:
            check_decay("averaging", self.averaging)
        if self.before and self.user_ids is not None:
            raise ValueError(
                "before is given beside user_ids: what was released earlier bounds what one record "
                "can do, not what a user with several can. Train without one of the two."
            )
        _check_correlated(self)
        learn_mask(self.model)
        _ = self.record_loss, self.groups, self.weights  # which check what they are made from

    @cached_property
    def records(self) -> Records:
        """The records of the data set, by number."""
        return records_of(self.dataset, self.collate, self.pad_to)

    @cached_property
    def record_loss(self) -> BatchLoss:
        """The loss as a function of model and batch that gives one value per record."""
        return per_record(self.loss)

    @cached_property
    def groups(self) -> Tensor | None:
        """The group of each record, ``[n]``, if groups were given."""
        return _groups(self.sensitive_features, len(self.records))

    @cached_property
    def weights(self) -> Tensor | None:
        """By how much each record counts once it is clipped, ``[n]`` float64, if that was given."""
        return _weights(self.record_weights, len(self.records))

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the data set says that no guarantee covers, such as the vocabulary of a text."""
        return tuple(getattr(self.dataset, "not_covered", ()))

    @property
    def repeatable(self) -> bool:
        """Whether a step can be made again, bit for bit."""
        # Correlated noise needs the exact sums of earlier steps, which are not stored.
        return self.seed is not None and self.deterministic and self.correlated is None

    @property
    def correlated(self) -> Banded | None:
        """The correlated noise that was asked for; with a single band it is independent."""
        return None if self.noise is None or self.noise.bands == 1 else self.noise

    def bands(self, steps: int) -> tuple[float, ...]:
        """The coefficients of the noise of a run of so many steps: one if it is independent."""
        if self.correlated is None:
            return (1.0,)
        momentum = self.optimizer.defaults.get("momentum", 0.0)
        return self.correlated.coefficients(steps, float(momentum))

    @property
    def stated(self) -> tuple[str, ...]:
        """What the data set says was stated about its records without looking at them."""
        stated = tuple(getattr(self.dataset, "stated", ()))
        weighed = "a rule by which a clipped record counts for at most one (record_weights)"
        return stated if self.record_weights is None else (*stated, weighed)

    @property
    def records_noisy(self) -> bool:
        """Whether the number of records that the run uses was released with noise."""
        return self.budget.records is None and bool(getattr(self.dataset, "records_noisy", False))

    @property
    def stated_records(self) -> int | None:
        """The number of records (or users) that is used in place of the exact one, if one is."""
        public = getattr(self.dataset, "public_records", None)
        if self.budget.records is None and type(public) is int and self.user_ids is None:
            return public
        return self.budget.records

    @cached_property
    def units(self) -> int:
        """The number of records, or of users where they are the unit of privacy."""
        return len(self.records) if self.user_ids is None else group_by_user(self.user_ids).count

    @cached_property
    def facts(self) -> Facts:
        """The settings that make this run this run, as plain values by name."""
        facts: Facts = {
            "the number of records": len(self.records),
            "the unit of privacy": "record" if self.user_ids is None else "user",
            "the number of units": self.units,
            "relation": self.relation,
            "accountant": self.accountant,
            "a seed given": self.seed is not None,
            "deterministic": self.deterministic,
            "isolation": self.isolation,
            **facts_of(self.optimizer.defaults, "optimizer"),
            "optimizer": type(self.optimizer).__qualname__,
            **({} if self.correlated is None else facts_of(self.correlated, "noise")),
            **({} if self.pad_to is None else facts_of(self.pad_to, "pad_to")),
            **({} if self.public is None else self.public.facts),
            **(facts_of(tuple(self.before), "before") if self.before else {}),
            # Which records count how much may be private, and is not written down.
            **({} if self.record_weights is None else {"record_weights": "given"}),
        }
        return facts | facts_of(self.budget, "budget") | facts_of(self.method, "method")

    def plan(self, noise_multiplier: float | None = None) -> Plan:
        """The plan of the run; with a noise multiplier given, nothing is calibrated."""
        budget = dataclasses.replace(self.budget, records=self.stated_records)
        if noise_multiplier is not None:
            budget = dataclasses.replace(budget, epsilon=None, noise_multiplier=noise_multiplier)
        plan = budget.resolve(
            self.units,
            release_at=self.method.release,
            accountant=self.accountant,
            relation=self.relation,
            before=self.before,
            parts=1 if self.correlated is None else self.correlated.parts,
        )
        return dataclasses.replace(plan, budget=self.budget)

    def sampler(self, rate: float, source: RandomSource, parts: RandomSource) -> PoissonSampler:
        """The sampler of the run's units; of their parts, where noise is correlated."""
        drawn = None if self.correlated is None else Parts(self.correlated.parts, parts)
        if self.user_ids is None:
            return PoissonSampler(self.units, rate, source, drawn)
        return UserSampler(self.user_ids, rate, source, drawn)


def _check_kinds(method: Any, ledger: Any) -> None:
    if not isinstance(method, Method):
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
    if type(optimizer).__name__ == "AcceleratedOptimizer":
        raise ValueError(
            "The optimizer was prepared by accelerate, and leaves out steps while gradients are "
            "accumulated: a step would be charged, and the weights would not move. Give the plain "
            "optimizer, and leave it and the model out of accelerator.prepare."
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


def _check_correlated(setup: Setup) -> None:
    """Refuses what the proof of correlated noise does not cover."""
    if setup.noise is not None and not isinstance(setup.noise, Banded):
        raise TypeError(
            f"noise is {setup.noise!r}; it must be plumbline.noise.banded(bands=...), or None for "
            "independent noise."
        )
    if setup.correlated is None:
        return
    reason = setup.method.independent_reason
    if setup.relation != "add_remove":
        reason = f"its accounting is proven for add_remove neighbours, not {setup.relation}"
    if reason is not None:
        raise ValueError(
            f"noise asks for {setup.correlated.bands} bands, but {reason}. Leave noise out, or "
            "choose a method with a constant bound, such as dpsgd."
        )


def _check_weighable(setup: Setup) -> None:
    """Refuses weights of records where the unit that is clipped is not one record."""
    if setup.record_weights is None:
        return
    if setup.user_ids is not None or setup.method.clipping.buckets(1) is not None:
        raise ValueError(
            "record_weights is given, and several records are clipped together (users or buckets), "
            "which have no weight of their own. Leave the weights out, or take another clipping."
        )
    if not setup.method.weighs_records:
        raise ValueError(
            f"record_weights is given, and the method '{setup.method.name}' makes a step of its "
            "own, which does not use them. Leave the weights out, or take another method."
        )


def _weights(given: Any, records: int) -> Tensor | None:
    if given is None:
        return None
    values = torch.as_tensor(given, dtype=torch.float64)
    if values.shape != (records,):
        raise ValueError(
            f"record_weights has shape {tuple(values.shape)}; give one for each of the {records} "
            "records."
        )
    require_own_weights("record_weights", values)
    return values


def require_own_weights(name: str, values: Tensor) -> None:
    """Refuses weights of records, ``[n]``, that cannot be a public rule's answers to each alone.

    Raises:
        ValueError: Naming the argument.
    """
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(
            f"{name} has a value outside 0 to 1: a record would count for more than its bound. "
            "Divide all of them by the largest that the rule can give."
        )
    divided = math.isclose(float(values.sum()), 1, rel_tol=1e-6)  # in float32 too
    if divided and float(values.max()) < 1:
        raise ValueError(
            f"{name} adds up to 1: whoever divided it by its sum, as AdaBoostClassifier does, made "
            "every record's weight depend on all the others. Give what a public rule gives to each "
            "record alone."
        )


def _groups(features: Any, records: int) -> Tensor | None:
    if features is None:
        return None
    if len(features) and isinstance(features[0], str):
        raise TypeError(
            "sensitive_features has words; give each record's group as a whole number, as "
            "pandas.factorize(...)[0] makes them."
        )
    values = torch.as_tensor(features)
    if values.shape != (records,):
        raise ValueError(
            f"sensitive_features has shape {tuple(values.shape)}; give the group of each of the "
            f"{records} records."
        )
    return values
