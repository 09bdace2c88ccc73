"""A method's step, traced: what it asks, with which values, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plumbline.evaluation.base import Update
from plumbline.mechanism.release import Program, Query, answered

Values = dict[str, Tensor]
GiveAnswer = Callable[[int, Values, float], Values]
"""An answer to the question at a place, of its value and the standard deviation of its noise."""


@dataclass
class StepTrace:
    """What a step asked, ``(name, sensitivity, sigma)``, with what value, and what else it left."""

    asked: list[tuple[str, float, float]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    left: dict[str, Any] = field(default_factory=dict)


def traced(program: Program[Update], answers: GiveAnswer) -> tuple[StepTrace, Update]:
    """The trace of a step, which has left nothing yet, and the update that it returns."""
    trace = StepTrace()

    def answer(query: Query) -> Values:
        trace.asked.append((query.name, query.sensitivity, query.sigma))
        trace.values.append(flat(query.named))
        std = query.sigma * query.sensitivity if query.sigma else 1.0
        return answers(len(trace.asked) - 1, query.named, std)

    return trace, answered(program, answer)


def flat(values: Values) -> Tensor:
    """All of them in one row, ``[n]`` of float64."""
    return torch.cat([one.detach().double().flatten().cpu() for one in values.values()])
