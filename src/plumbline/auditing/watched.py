"""A method that takes its step with the canary and, beside it, without, and keeps what it was told.

It is trained like any method. What is asked is what the method asks with the canary in the batch;
the mechanism answers as it always does; and the same answer goes to the method's step on the batch
without the canary. So both steps share everything that is public, and how far their exact values
are apart is what the noise has to hide.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from plumbline.auditing.canary import idle
from plumbline.mechanism.release import Query, Sampling, StepRelease
from plumbline.methods import Method

Steps = Generator[Query, dict[str, Tensor], dict[str, Tensor]]

_EXTRA = "repetitions"


class AuditError(RuntimeError):
    """A step that cannot be audited: what it asks, not only the answer, depends on the canary."""


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to one question.

    Attributes:
        name: Of the question.
        std: The standard deviation that its noise is declared to have.
        moved: How far the canary moves the exact answer, in L2 norm.
        noise: What was added where no record is, ``[repetitions]`` float64.
    """

    name: str
    std: float
    moved: float
    noise: Tensor


@dataclass(frozen=True, eq=False)
class Told:
    """What a step told.

    Attributes:
        answers: To its questions, in order.
        update_in: The update where no record is, with the canary in the batch, ``[repetitions]``.
        update_out: The same without it; from the same answers.
    """

    answers: tuple[Answer, ...]
    update_in: Tensor
    update_out: Tensor

    @property
    def moved(self) -> float:
        """How far the canary moves all answers, in standard deviations of their noise."""
        return math.hypot(*(answer.moved / answer.std for answer in self.answers))


class Watched(Method):
    """A method under audit; the canary is the last record.

    Attributes:
        method: The method.
        told: What each step told.
    """

    def __init__(self, method: Method, repetitions: int) -> None:
        super().__init__(
            name=method.name,
            evaluation=method.evaluation,
            clipping=method.clipping,
            noisy=method.noisy,
            composition=method.composition,
        )
        self.method = method
        self.told: list[Told] = []
        self._without = copy.deepcopy(method)
        self._repetitions = repetitions

    # The method may be of a class that declares these differently.

    @property
    def together(self) -> bool:
        return self.method.together

    def release(self, noise_multiplier: float, sampling: Sampling) -> StepRelease:
        return self.method.release(noise_multiplier, sampling)

    def see(self, chunk: Any) -> Any:
        return self.method.see(chunk)

    def step(self, batch: Any) -> Steps:
        """The method's step; what it asks is asked once, and both of its steps get the answer."""
        rest = replace(batch, indices=batch.indices[:-1], unit_ids=batch.unit_ids[:-1])
        inside, outside = _Program(self.method.step(batch)), _Program(self._without.step(rest))
        answers: list[Answer] = []
        while inside.asks is not None and outside.asks is not None:
            query, other = inside.asks, outside.asks
            if query.asked != other.asked:
                raise AuditError(
                    f"With the canary {query.asked} is asked, and {other.asked} without it: the "
                    "question itself depends on the records, and no noise covers that."
                )
            noisy = yield self._widened(query)
            answers.append(self._answer(query, other, noisy))
            heard = {name: noisy[name] for name in query.named}
            outside.hear({name: value.clone() for name, value in heard.items()})
            inside.hear(heard)
        if inside.asks is not None or outside.asks is not None:
            raise AuditError("A question is asked with the canary and not without, or otherwise.")
        updates = [idle(program.update, self._repetitions) for program in (inside, outside)]
        self.told.append(Told(tuple(answers), *updates))
        return inside.update

    def _widened(self, query: Query) -> Query:
        """A count is asked together with zeros, one for each repetition, to have noise for each."""
        if not isinstance(query.value, Tensor):
            return query  # a gradient, which has entries to spare
        zeros = torch.zeros(self._repetitions, dtype=torch.float64)
        return replace(query, value={"value": query.value, _EXTRA: zeros})

    def _answer(self, query: Query, other: Query, noisy: Mapping[str, Tensor]) -> Answer:
        own, without = query.named, other.named
        gaps = [(own[name].double() - without[name].double()).square().sum() for name in own]
        if _EXTRA in noisy:
            noise = noisy[_EXTRA]
        else:
            noise = idle(noisy, self._repetitions) - idle(own, self._repetitions)
        moved = float(torch.stack(gaps).sum().sqrt())
        return Answer(query.name, query.sensitivity * query.sigma, moved, noise)


class _Program:
    """A step's questions, one after the other, and at last its update."""

    def __init__(self, program: Steps) -> None:
        self._program = program
        self.asks: Query | None = None
        self.update: dict[str, Tensor] = {}
        self._go(lambda: next(program))

    def hear(self, answer: dict[str, Tensor]) -> None:
        """Goes on to the next question."""
        self._go(lambda: self._program.send(answer))

    def _go(self, on: Callable[[], Query]) -> None:
        try:
            self.asks = on()
        except StopIteration as end:
            self.asks, self.update = None, end.value
