"""A method's step on a neighbourhood, traced (``methods.tracing``), and the answers it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.auditing.neighbours import Batch, Neighbourhood, TokenNetwork
from plumbline.gradients import Isolation
from plumbline.methods import Method
from plumbline.methods.tracing import GiveAnswer, StepTrace, Values, traced
from plumbline.record_random import OwnGenerators
from plumbline.training.batches import PrivateBatch
from plumbline.training.losses import per_record

_EXPECTED_SIZE = 8


class NeighbourWorld:
    """A neighbourhood with a network: what a batch needs of its owner.

    Attributes:
        batch: The batch that is taken: it decides the last record's content.
    """

    loss = per_record(nn.CrossEntropyLoss(reduction="none"))
    record_weights = None

    def __init__(
        self,
        method: Method,
        data: Neighbourhood,
        sampling_rate: float = 0.1,
        max_physical_batch: int | None = None,
    ) -> None:
        self.data = data
        self.batch: Batch = data.batches[0]
        self.model = TokenNetwork(method.together)
        self.max_physical_batch = max_physical_batch
        self.isolation: Isolation = "vmap"
        self.generators = OwnGenerators()
        self.programs = None
        self.plan = _Plan(sampling_rate)
        self._groups = group_values(method)

    @property
    def sensitive_features(self) -> Tensor:
        """The group of each record, ``[records]``."""
        return self._groups[self.data.groups[self.data.places(self.batch)]]

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by name."""
        return dict(self.model.named_parameters())

    def fetch(self, indices: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Some records; they are the same in every step."""
        places = self.data.places(self.batch)[indices]
        return self.data.x[places], self.data.y[places]

    def draws_key(self, step: int) -> str:
        """What the records' own random numbers in a step are drawn from."""
        return f"step {step}"

    def weights(self) -> Values:
        """The parameters and buffers as they are now."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}


@dataclass(frozen=True)
class _Plan:
    """What a batch needs of a run's plan."""

    sampling_rate: float
    noise_multiplier: float = 1.0
    expected_batch_size: int = _EXPECTED_SIZE


def group_values(method: Method) -> Tensor:
    """Two values that the sensitive feature may have: those declared, or 0 and 1."""
    declared = getattr(method.clipping, "groups", None) or getattr(method, "groups", None)
    values = tuple(declared) if declared else (0, 1)
    return torch.tensor([values[0], values[-1]])


class NoisyAnswers:
    """Noisy answers, some of them far off; kept in ``given``, to be given again."""

    def __init__(self, draw: torch.Generator) -> None:
        self._draw = draw
        self.given: list[Values] = []

    def __call__(self, place: int, value: Values, std: float) -> Values:
        """An answer to the question at this place."""
        if torch.rand((), generator=self._draw) < 0.25:
            std *= 100
        noisy = {
            name: torch.nan_to_num(one) + std * torch.randn(one.shape, generator=self._draw)
            for name, one in value.items()
        }
        self.given.append({name: one.clone() for name, one in noisy.items()})
        return noisy


def traced_step(
    world: NeighbourWorld, method: Method, number: int, batch: Tensor, answers: GiveAnswer
) -> StepTrace:
    """A step of a method on some of the records, ``batch`` their numbers."""
    # Who keeps something of every record counts them through: full batches have no gaps.
    units = torch.arange(len(batch)) if method.keeps_records else batch
    owner: Any = world
    trace, update = traced(method.step(PrivateBatch(number, batch, units, owner)), answers)
    trace.left = {"update": update, "state": method.state_dict(), "weights": world.weights()}
    return trace
