"""A method: rules for how each record's gradient is taken, and one for how it is scaled.

A method's step is a small program that asks: it yields a ``Query`` and receives the noisy answer.
It never touches a noise source, and what it asks is what is charged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from plumbline.clipping import Clipping, Program
from plumbline.clipping.base import Gradients
from plumbline.evaluation import Batch, Chunk, Evaluation, Plain, Update
from plumbline.gradients import PerSampleGradients
from plumbline.gradients.summation import LEAST_BOUND, ROUNDING, TOGETHER, float64
from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.assumptions import Company
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.release import Composition, GaussianQuery, Query, Sampling, StepRelease

GRADIENT = "gradient"


@dataclass
class Method:
    """Evaluations and a clipping, composed.

    Attributes:
        name: For the ledger and the statement.
        evaluation: How each record's gradient is taken; at most one rule to a slot.
        clipping: By what factor it is scaled.
        noisy: False for a baseline without noise, which has no guarantee.
        composition: How a step's questions are charged: together, which is exact; "basic" adds up
            what each would cost alone, where that is more, to compare with papers that did.
    """

    name: str
    evaluation: tuple[Evaluation, ...]
    clipping: Clipping
    noisy: bool = True
    composition: Composition = "joint"

    @property
    def unbounded_reason(self) -> str | None:
        """Why the method has no guarantee, or None."""
        if not self.noisy:
            return f"the method '{self.name}' adds no noise"
        reasons = [rule.unbounded_reason for rule in self.evaluation]
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def private(self) -> bool:
        """Whether the method has a guarantee; ``unbounded_reason`` says why not."""
        return self.unbounded_reason is None

    @property
    def one_process_reason(self) -> str | None:
        """Why several processes cannot share the records of a step, or None."""
        reasons = [rule.one_process_reason for rule in self.evaluation]
        return next((reason for reason in reasons if reason is not None), None)

    @property
    def independent_reason(self) -> str | None:
        """Why its noise cannot be correlated between steps, or None."""
        if not self.private:
            return f"the method '{self.name}' has no guarantee that noise could keep"
        if not self.clipping.constant:
            return (
                f"the bound of the method '{self.name}' changes along the run, and correlated "
                "noise mixes the sums of several steps"
            )
        if self.composition != "joint":
            return "questions are charged one by one (basic composition)"
        return None

    @property
    def reads_released(self) -> bool:
        """Whether it computes with released gradients as whole vectors."""
        return any(rule.reads_released for rule in self.evaluation)

    @property
    def needs_groups(self) -> bool:
        """Whether it needs ``sensitive_features``."""
        return self.clipping.needs_groups

    @property
    def weighs_records(self) -> bool:
        """Whether a step uses the weights of records; one that a subclass makes need not."""
        return type(self).step is Method.step

    @property
    def together(self) -> bool:
        """Whether rows go through BatchNorm together, within a record or bucket."""
        return self.clipping.together or any(rule.together for rule in self.evaluation)

    @property
    def company(self) -> Company:
        """What a record goes through the model with."""
        if self.clipping.together:
            return "bucket"
        return "public" if any(rule.needs_public for rule in self.evaluation) else "none"

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What it uses that no guarantee covers, for the statement."""
        return tuple(item for rule in self.evaluation for item in rule.not_covered)

    @property
    def passes(self) -> int:
        """How many times a step takes the batch through the model, forward and backward.

        A method that asks before it scales (DPSGD-F) takes a batch of several chunks once more.
        """
        return math.prod(rule.passes for rule in self.evaluation)

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        """The questions of one step, in order, sensitivities in units of themselves."""
        sigma = noise_multiplier if self.noisy else 0.0
        first = [query for rule in self.evaluation for query in rule.queries(sigma)]
        gradient = GaussianQuery(name=GRADIENT, sensitivity=1.0, noise_multiplier=sigma)
        return (
            *first,
            *self.clipping.queries_before(sigma),
            gradient,
            *self.clipping.queries_after(sigma),
        )

    def release(self, noise_multiplier: float, sampling: Sampling) -> StepRelease:
        """What one step releases: this is what is accounted, charged and verified."""
        return StepRelease(
            sampling=sampling,
            queries=self.queries(noise_multiplier),
            unbounded_reason=self.unbounded_reason,
            composition=self.composition,
        )

    def budget(
        self,
        budget: Budget,
        records: int,
        *,
        accountant: Accountant = "pld",
        relation: Relation = "add_remove",
    ) -> Budget:
        """The budget to train this method with, on ``records`` records.

        No noise brings a method without a guarantee to an epsilon: it gets the noise that DP-SGD
        needs for it, so that the two can be compared.
        """
        if self.private or budget.epsilon is None:
            return budget
        dpsgd = budget.resolve(records, accountant=accountant, relation=relation)
        return replace(budget, epsilon=None, noise_multiplier=dpsgd.noise_multiplier)

    def step(self, batch: Batch) -> Program[Update]:
        """One step: each rule asks what it needs, the clipped mean is asked for between."""
        batch = self._bucketed(batch)
        yield from self._ask_before(batch)
        records = GradientBatch(batch, self.evaluation, self.noisy)
        yield from self.clipping.before(records)
        update = yield from self._mean(records, GRADIENT)
        yield from self.clipping.after(records)
        for rule in self.evaluation:
            update = rule.after(batch, update)
        return update

    @property
    def plain(self) -> bool:
        """Whether it clips each record's own gradient, at the weights as they are."""
        asked = [rule for rule in self.evaluation if rule.slot != "update"]
        pooled = self.clipping.buckets(1) is not None
        return not pooled and all(isinstance(rule, Plain) for rule in asked)

    def before_clipping(self, batch: Batch) -> Program[list[PerSampleGradients]]:
        """The gradients that a step on the batch would clip, chunk by chunk.

        It asks what the rules of evaluation ask, and changes their state as a step does: call it on
        a copy of the method.
        """
        batch = self._bucketed(batch)
        yield from self._ask_before(batch)
        return [chunk.gradients for chunk in GradientBatch(batch, self.evaluation, self.noisy)]

    def plain_gradients(self, batch: Batch) -> list[PerSampleGradients]:
        """The same without the method: each record's gradient at the weights as they are.

        Where BatchNorm takes rows together, a record's loss is defined only with them: companions
        and buckets stay.
        """
        rules = [rule for rule in self.evaluation if rule.together]
        batch = self._bucketed(batch) if self.clipping.together else batch
        return [chunk.gradients for chunk in GradientBatch(batch, rules, False, Plain())]

    def _ask_before(self, batch: Batch) -> Program[None]:
        for rule in self.evaluation:
            yield from rule.before(batch, lambda name: self._mean(self._at_weights(batch), name))

    def see(self, chunk: Chunk) -> Chunk:
        """A chunk as the model is to see it."""
        return seen(chunk, self.evaluation)

    def _mean(
        self, records: GradientBatch, name: str, clipping: Clipping | None = None
    ) -> Program[Update]:
        """Asks for the clipped sum, and divides it by a public constant."""
        clipping = clipping or self.clipping
        noisy = yield records.query(clipping, name)
        constant = clipping.normaliser(records.expected_size)
        return {
            parameter: noisy[parameter].to(value.dtype) / constant
            for parameter, value in records.parameters().items()
        }

    def _at_weights(self, batch: Batch) -> GradientBatch:
        """The batch's records with their gradients taken at the weights as they are."""
        return GradientBatch(batch, self.evaluation, self.noisy, Plain())

    def _bucketed(self, batch: Batch) -> Batch:
        buckets = self.clipping.buckets(batch.expected_size)
        if buckets is None:
            return batch
        drawn = batch.draws("buckets").integers(buckets)
        return batch.bucketed(drawn, together=self.clipping.together)

    def state_dict(self) -> dict[str, Any]:
        """What the method carries from step to step."""
        return {
            "evaluation": [rule.state_dict() for rule in self.evaluation],
            "clipping": self.clipping.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state that ``state_dict`` gave."""
        for rule, stored in zip(self.evaluation, state["evaluation"], strict=True):
            rule.load_state_dict(stored)
        self.clipping.load_state_dict(state["clipping"])

    @property
    def keeps_records(self) -> bool:
        """Whether it keeps state of single records."""
        return any(hasattr(rule, "private_state_dict") for rule in self.evaluation)

    def private_state_dict(self) -> dict[str, Any]:
        """What it keeps of single records: to be stored in a file marked PRIVATE."""
        return {
            str(place): rule.private_state_dict()
            for place, rule in enumerate(self.evaluation)
            if hasattr(rule, "private_state_dict")
        }

    def load_private_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        for place, stored in state.items():
            rule: Any = self.evaluation[int(place)]
            rule.load_private_state_dict(stored)


@dataclass(frozen=True, eq=False)
class GradientChunk:
    """Some units of a batch with their gradients.

    Attributes:
        gradients: Each unit's gradient.
        norms: ``[B]``, zero where the gradient or the loss is not finite.
        finite: ``[B]`` bool.
        groups: Each unit's group, ``[B]``, if groups were given.
        weights: By how much each unit counts once it is clipped, ``[B]`` in [0, 1]; None for 1.
        buckets: In which bucket each unit's gradient is summed, ``[B]``, if in any.
    """

    gradients: PerSampleGradients
    norms: Tensor
    finite: Tensor
    groups: Tensor | None
    weights: Tensor | None = None
    buckets: Tensor | None = None

    def clipped_sum(self, clipping: Clipping) -> Update:
        """The sum of the clipped gradients, in float64."""
        usual = LEAST_BOUND <= clipping.sensitivity <= 1 / LEAST_BOUND
        gradients: Gradients = self.gradients.to_release(self.buckets if usual else None)
        if self.weights is not None:
            gradients = _Weighted(gradients, self.weights)
        return clipping.clipped_sum(gradients, self.norms, self.finite, self.groups)


class _Weighted:
    """Gradients of which each counts by a weight in [0, 1] in every sum that a clipping makes.

    A weight is a function of its record alone, and a factor times a weight of at most one, rounded,
    is at most the factor: what a clipping proves of a record holds with its weight too.
    """

    def __init__(self, gradients: Gradients, weights: Tensor) -> None:
        self._gradients, self._weights = gradients, weights

    @property
    def names(self) -> list[str]:
        return self._gradients.names

    def norms(self, names: Collection[str] | None = None) -> Tensor:
        return self._gradients.norms(names)

    def sum(self, weights: Tensor | Mapping[str, Tensor] | None = None) -> Update:
        if weights is None:
            return self._gradients.sum(self._weights)
        if isinstance(weights, Tensor):
            return self._gradients.sum(weights * self._weights.to(weights))
        return self._gradients.sum(
            {name: factors * self._weights.to(factors) for name, factors in weights.items()}
        )


class GradientBatch:
    """A batch's units through the rules of evaluation, chunk by chunk.

    Iterating takes the gradients; a batch of a single chunk keeps them, so that iterating again
    (DPSGD-F counts first and scales then) costs nothing. With ``weights``, gradients are taken
    where it says; the chunks, and so the dropout masks, are those of the rules all the same.
    """

    def __init__(
        self,
        batch: Batch,
        rules: Sequence[Evaluation],
        noisy: bool,
        weights: Evaluation | None = None,
    ) -> None:
        own = next((rule for rule in rules if rule.slot == "weights"), Plain())
        self._batch = batch
        self._rules = rules
        self._weights = own if weights is None else weights
        self._only: GradientChunk | None = None
        self._norms: list[Tensor] | None = None
        self._groups: list[Tensor] = []
        self.noise_multiplier = batch.noise_multiplier if noisy else 0.0
        self.expected_size = batch.expected_size

    def __iter__(self) -> Iterator[GradientChunk]:
        if self._only is not None:
            yield self._only
            return
        chunks = list(self._batch.chunks(self._limit))
        single = len(chunks) == 1
        norms, groups = [], []
        while chunks:
            part = self._part(chunks.pop(0))
            if single:
                self._only = part
            norms.append(part.norms)
            if part.groups is not None:
                groups.append(part.groups)
            yield part
        self._norms, self._groups = norms, groups

    def parameters(self) -> Mapping[str, Tensor]:
        """The trainable parameters by name."""
        return self._batch.parameters()

    def query(self, clipping: Clipping, name: str) -> Query:
        """Asks for the sum of the clipped gradients.

        The value is in float64, and the noise covers the rounding of the sum.
        """
        total: Update = {}
        for part in self:
            for parameter, value in part.clipped_sum(clipping).items():
                own = float64(value)
                total[parameter] = total[parameter].add_(own) if parameter in total else own
        zeros = {} if total else self._batch.zeros()
        parameters = self.parameters()
        types = {parameter.dtype for parameter in parameters.values()}
        return Query(
            value={
                parameter: total[parameter] if total else float64(zeros[parameter])
                for parameter in parameters
            },
            sensitivity=clipping.sensitivity,
            sigma=self.noise_multiplier,
            name=name,
            rounding=ROUNDING,
            answer_type=types.pop() if len(types) == 1 else None,
        )

    @cached_property
    def norms(self) -> Tensor:
        """Each unit's norm, ``[N]``; zero for one that is not finite."""
        if self._norms is None:
            for _ in self:
                pass
        return torch.cat(self._norms) if self._norms else torch.zeros(0)

    @property
    def groups(self) -> Tensor | None:
        """Each unit's group, ``[N]``, if groups were given."""
        if len(self.norms) == 0:
            return torch.zeros(0, dtype=torch.long)
        return torch.cat(self._groups) if self._groups else None

    @property
    def _limit(self) -> int | None:
        return min((rule.limit for rule in self._rules if rule.limit is not None), default=None)

    def _part(self, chunk: Chunk) -> GradientChunk:
        chunk = seen(chunk, self._rules)
        gradients = self._weights.gradients(chunk)
        for rule in self._rules:
            gradients = rule.change(chunk, gradients)
        norms = gradients.norms()
        finite = torch.isfinite(norms) & torch.isfinite(gradients.losses)
        norms = norms.masked_fill(~finite, 0)
        buckets = None
        if self._limit is None and self._batch.whole:  # both are public
            buckets = chunk.unit_ids // math.ceil(TOGETHER / self._batch.sampling_rate)
        return GradientChunk(gradients, norms, finite, chunk.groups, chunk.weights, buckets)


def seen(chunk: Chunk, rules: Sequence[Evaluation]) -> Chunk:
    """A chunk as the model is to see it by the rules."""
    for rule in rules:
        chunk = rule.see(chunk)
    return chunk
