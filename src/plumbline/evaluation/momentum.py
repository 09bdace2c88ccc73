"""Momentum before clipping, and after it (Clipping Bias Reduction, section 4).

``InnerMomentum`` (Alg. 2, Eq. 13) evaluates the batch's records at the last few iterates too, which
are public; ``RecordMomentum`` (Alg. 1) keeps a momentum for every record of the data set, for
full-batch descent on few records; ``OuterMomentum`` (Eq. 14) is ordinary momentum on what was
released. Eq. 14 prints ``1 - gamma1`` with ``gamma1 = 0.9`` where its code decays by 0.9: ours is
the decay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from plumbline.checks import check_count, check_decay
from plumbline.evaluation.base import Ask, Asking, Batch, Chunk, Evaluation, Update, evaluation
from plumbline.gradients import PerSampleGradients, combine
from plumbline.spaces import Between, LogBetween


@evaluation
@dataclass
class InnerMomentum(Evaluation):
    """``sum_l decay^l g_i(theta_{t-l})`` for ``l = 0 .. length``, not renormalised.

    Attributes:
        length: How many past iterates take part beside the present one, K0; at the start, those
            that exist.
        decay: gamma0.
    """

    length: int = 2
    decay: float = 0.08
    iterates: list[Update] = field(default_factory=list, init=False, repr=False)
    _offsets: list[Update] = field(default_factory=list, init=False, repr=False)

    search: ClassVar = {"decay": Between(0.01, 0.5)}
    slot = "weights"
    state = ("iterates",)
    keeps = "the last iterates"

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_decay("decay", self.decay)

    @property
    def passes(self) -> int:
        return 1 + self.length

    def before(self, batch: Batch, ask: Ask) -> Asking:
        now = {name: value.detach() for name, value in batch.parameters().items()}
        self._offsets = [
            {name: value - now[name] for name, value in iterate.items()}
            for iterate in self.iterates
        ]
        kept = {name: value.clone() for name, value in now.items()}
        self.iterates = [kept, *self.iterates][: self.length]
        yield from ()

    def gradients(self, chunk: Chunk) -> PerSampleGradients:
        parts = [chunk.capture(), *(chunk.capture(at=offset) for offset in self._offsets)]
        return combine(parts, [self.decay**past for past in range(len(parts))])


@evaluation
@dataclass
class RecordMomentum(Evaluation):
    """``m_i = rate g_i + (1 - rate) m_i`` for every record, from ``m_i = g_i``; full batches only.

    Attributes:
        rate: gamma.
    """

    rate: float = 0.1
    _momenta: Update = field(default_factory=dict, init=False, repr=False)
    _next: dict[int, Update] = field(default_factory=dict, init=False, repr=False)

    search: ClassVar = {"rate": LogBetween(0.01, 1)}
    slot = "gradient"
    keeps = "a momentum for every record (private)"

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate!r}; it must be above 0 and at most 1.")

    @property
    def one_process_reason(self) -> str | None:
        return "it keeps a momentum for every record, in the memory of one process"

    def before(self, batch: Batch, ask: Ask) -> Asking:
        if batch.sampling_rate != 1:
            raise ValueError(
                f"The sampling rate is {batch.sampling_rate:.4g}, but a momentum of every record "
                "is defined for full batches only (Clipping Bias Reduction, Alg. 1). Give "
                "expected_batch_size= "
                "the number of records in the budget, or use methods.inner_outer, which samples."
            )
        self._next = {}
        yield from ()

    def change(self, chunk: Chunk, gradients: PerSampleGradients) -> PerSampleGradients:
        gradients.norms()  # sums that cancel are computed again, exactly
        now = gradients.materialise()
        ids = chunk.unit_ids
        if self._momenta:
            now = {
                name: self.rate * g + (1 - self.rate) * self._momenta[name][ids.to(g.device)]
                for name, g in now.items()
            }
        if len(ids):
            self._next[int(ids[0])] = now  # a chunk that is seen twice in a step counts once
        return PerSampleGradients.of(now, gradients.losses)

    def after(self, batch: Batch, update: Update) -> Update:
        if self._next:
            parts = [self._next[first] for first in sorted(self._next)]
            self._momenta = {name: torch.cat([p[name] for p in parts]) for name in parts[0]}
        self._next = {}
        return update

    def private_state_dict(self) -> dict[str, Any]:
        """The records' momenta: private, kept in a file of their own."""
        return {"momenta": self._momenta}

    def load_private_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state."""
        self._momenta = state["momenta"]


@evaluation
@dataclass
class OuterMomentum(Evaluation):
    """``M = decay M + g``, for g what was released; the optimizer is given M."""

    decay: float = 0.9
    momentum: Update = field(default_factory=dict, init=False, repr=False)

    search: ClassVar = {"decay": Between(0.0, 0.95)}
    slot = "update"
    reads_released = True
    state = ("momentum",)
    keeps = "the outer momentum"

    def __post_init__(self) -> None:
        check_decay("decay", self.decay)

    def after(self, batch: Batch, update: Update) -> Update:
        before: dict[str, Tensor | float] = {**dict.fromkeys(update, 0.0), **self.momentum}
        self.momentum = {name: self.decay * before[name] + g for name, g in update.items()}
        return {name: value.clone() for name, value in self.momentum.items()}
