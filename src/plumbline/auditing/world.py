"""The canary's world: a method made private in it, its real steps, and its claims.

Nothing here stands in for the library: the run is a real one, on full batches with the
canary in them, and who takes part in a sampled step is drawn by its sampler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from plumbline.auditing.canary import SIZES, Canary, Words, records
from plumbline.auditing.scores import Floats
from plumbline.auditing.tracing import group_values
from plumbline.auditing.watched import Told, Watched
from plumbline.mechanism.calibration import Budget
from plumbline.mechanism.random_source import SecureSource, SeededSource
from plumbline.methods import Method
from plumbline.sampling import PoissonSampler
from plumbline.training import Private, Setup, start
from plumbline.training.distributed import Ranks

_TRIED = 64  # repetitions while canaries are tried


@dataclass(frozen=True)
class World:
    """Where a method is audited.

    Attributes:
        method: The method.
        noise_multiplier: Of its gradient query.
        delta: At which epsilon is claimed.
        others: How many records there are beside the canary.
        seed: Of noise and sampling; None draws them securely.
    """

    method: Method
    noise_multiplier: float
    delta: float
    others: int
    seed: int | None

    def private(
        self, canary: Canary, rate: float, steps: int, repetitions: int, *, watched: bool = True
    ) -> Private:
        """The method made private, with so many entries that no record touches."""
        data, groups = records(canary, self.others)
        model = Words(self.others + 1, repetitions)
        setup = Setup(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
            dataset=data,
            loss=nn.BCEWithLogitsLoss(reduction="none"),
            method=Watched(self.method, repetitions) if watched else self.method,
            budget=Budget(
                noise_multiplier=self.noise_multiplier,
                delta=self.delta,
                steps=steps,
                sampling_rate=rate,
                records=self.others + 1,
            ),
            sensitive_features=group_values(self.method)[groups],
            seed=self.seed,
        )
        return start(setup, Ranks())  # where several processes train, each audits for itself

    def claimed(self, rate: float, steps: int) -> float:
        """The accountant's epsilon."""
        return self.private(Canary(1.0), rate, steps, 1).plan.epsilon

    def try_sampling(self, rate: float) -> None:
        """Takes a step at this rate: a method that is for full batches only refuses it."""
        private = self.private(Canary(1.0), rate, 1, 1, watched=False)
        for batch in private:
            private.step(batch)
        private.close()

    def farthest(self) -> Canary:
        """The canary that moves the answers farthest."""
        groups = (1, 0) if self.method.needs_groups else (1,)
        tried = [Canary(size, group) for size in SIZES for group in groups]
        # Those that move as far but for rounding are as good: the first one is taken.
        return max(tried, key=lambda one: float(f"{self.steps(one, _TRIED, 1)[0].moved:.4g}"))

    def steps(self, canary: Canary, repetitions: int, steps: int) -> list[Told]:
        """What real steps on full batches tell."""
        private = self.private(canary, 1.0, steps, repetitions)
        for batch in private:
            private.step(batch)
        private.close()
        watched: Any = private.method
        told: list[Told] = watched.told
        return told

    def taking_part(self, rate: float, repetitions: int, step: int) -> Floats:
        """1 where the canary is in the batch, 0 where not, by the real sampler, ``[n]``."""
        source = SecureSource() if self.seed is None else SeededSource(self.seed, "audit")
        inside = np.zeros(repetitions)
        inside[PoissonSampler(repetitions, rate, source).indices(step).numpy()] = 1
        return inside
