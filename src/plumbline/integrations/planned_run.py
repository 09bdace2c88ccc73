"""What a trainer of another library is told of its private run, and how it begins it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from plumbline.mechanism import Budget
from plumbline.methods import Method
from plumbline.private_training import make_private
from plumbline.sampling import group_by_user
from plumbline.training import Private

_DECIDED = ("budget", "collate", "loss", "method", "schedulers")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A private run, but for its length and its parts, which the trainer knows.

    Args:
        method: From ``plumbline.methods``, or the user's own.
        delta: As in ``plumbline.Budget``, and so are the next three.
        epsilon: The most that the run may cost.
        noise_multiplier: Given in its place.
        records: The number of records, if it is public knowledge.
        settings: Further arguments of ``make_private``.
        decided: Those that this trainer decides, beside what every one does.
    """

    method: Method
    delta: float
    epsilon: float | None
    noise_multiplier: float | None
    records: int | None
    settings: Mapping[str, Any]
    decided: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        taken = [name for name in (*_DECIDED, *self.decided) if name in self.settings]
        if taken:
            raise ValueError(
                f"{', '.join(taken)} cannot be given: that follows from what the trainer is given. "
                "Leave it out."
            )

    def epoch_steps(self, dataset: Any, expected: int) -> int:
        """In how many steps every record (or user) is drawn once on average, rounded up."""
        records, users = self.records, self.settings.get("user_ids")
        if records is None:
            records = len(dataset) if users is None else group_by_user(users).count
        return math.ceil(records / expected)

    def begin(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        *,
        loss: Callable[..., Any],
        steps: int,
        **decided: Any,
    ) -> Private:
        """The run; the loader's batch size is the expected one."""
        budget = Budget(
            delta=self.delta,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            records=self.records,
            steps=steps,
            expected_batch_size=loader.batch_size,
        )
        return make_private(
            model,
            optimizer,
            loader,
            loss=loss,
            method=self.method,
            budget=budget,
            **decided,
            **self.settings,
        )
