"""Planted bugs: the library with one thing wrong in it, each as an audit that should find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from plumbline import methods
from plumbline.auditing import StepAudit, audit_step
from plumbline.clipping import Flat, PerGroup
from plumbline.clipping.base import Gradients
from plumbline.mechanism import calibration
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.random_source import SeededSource, Stream
from plumbline.methods import Method
from plumbline.training import answering


@dataclass(frozen=True)
class Bug:
    """A bug.

    Attributes:
        name: What is wrong.
        method: Makes the method that is audited.
        planted: Puts the bug into the library, where it is not in the method.
        settings: Of the audit.
    """

    name: str
    method: Callable[[], Method] = methods.dpsgd
    planted: Callable[[], AbstractContextManager[Any]] = nullcontext
    settings: Mapping[str, Any] = field(default_factory=dict)

    def audit(self, **more: Any) -> StepAudit:
        """Audits the library with the bug in it."""
        with self.planted():
            return audit_step(self.method(), **{**self.settings, **more})

    def without(self, method: Method, **more: Any) -> StepAudit:
        """The same audit of a method that is right."""
        return audit_step(method, **{**self.settings, **more})


@contextmanager
def half_the_noise() -> Iterator[None]:
    right = answering.add_noise

    def add(
        value: Mapping[str, Tensor], std: float, noise: Tensor, *answer_type: torch.dtype | None
    ) -> dict[str, Tensor]:
        return right(value, std / 2, noise, *answer_type)

    with mock.patch.object(answering, "add_noise", add):
        yield


@dataclass(frozen=True)
class ForgetsALayer(Flat):
    """Scales all layers but the second."""

    def clipped_sum(
        self, gradients: Gradients, norms: Tensor, finite: Tensor, groups: Tensor | None
    ) -> dict[str, Tensor]:
        factors = self.factors(norms, groups).masked_fill(~finite, 0)
        own = {name: torch.ones_like(factors) for name in gradients.names if "second" in name}
        return gradients.sum({name: own.get(name, factors) for name in gradients.names})


class ByRealisedSize(Method):
    """Divides by the number of records that were drawn, as papers 001, 002 and 004 print it."""

    def step(self, batch: Any) -> Any:
        update = yield from super().step(batch)
        return {name: g * batch.expected_size / len(batch) for name, g in update.items()}


class AtTheBaseBound(PerGroup):
    """Takes C for the sensitivity, as 004's Alg. 3 prints it, where a record can add max C_k."""

    @property
    def sensitivity(self) -> float:
        return self.clip


def fairlens_as_if_private() -> Method:
    made = methods.fairlens()

    class Claimed(type(made)):  # type: ignore[misc]
        unbounded_reason = None

    return Claimed(made.name, made.evaluation, made.clipping)


@contextmanager
def counts_with_their_own_subsample() -> Iterator[None]:
    """Every question is accounted as if a batch had been drawn for it, as 004's code does."""

    def separately(releases: Sequence[Any], **settings: Any) -> float:
        apart = [(one.alone(k), n) for one, n in releases for k in range(len(one.queries))]
        return epsilon(apart, **settings)

    with mock.patch.object(calibration, "epsilon_of", separately):
        yield


@contextmanager
def one_noise_for_all_steps() -> Iterator[None]:
    def once(self: SeededSource, domain: str, *position: int) -> Stream:
        return self.stream(domain)

    with mock.patch.object(SeededSource, "once", once):
        yield


BUGS = (
    Bug("noise halved", planted=half_the_noise),
    Bug(
        "clipping skipped for one layer",
        lambda: methods.compose(clipping=ForgetsALayer(1.0), name="dpsgd"),
    ),
    Bug(
        "division by the realised batch size",
        lambda: ByRealisedSize("dpsgd", (), Flat(1.0)),
        settings={"noise_multiplier": 2.0, "statistics": ("scale",)},
    ),
    Bug(
        "DPSGD-F: noise at C instead of max C_k",
        lambda: methods.compose(clipping=AtTheBaseBound(1.0), name="dpsgd_f"),
    ),
    Bug("FairLens accounted as private", fairlens_as_if_private, settings={"others": 20}),
    Bug(
        "counts accounted with their own subsample",
        lambda: methods.global_adapt(count_noise=0.5),
        counts_with_their_own_subsample,
        {"noise_multiplier": 0.5, "sampling_rate": 0.01},
    ),
    Bug(
        "noise seed reused by the next step",
        planted=one_noise_for_all_steps,
        settings={"statistics": ("difference",)},
    ),
)
