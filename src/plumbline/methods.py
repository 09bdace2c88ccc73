"""The papers' methods by name, each a few lines composing an evaluation and a clipping.

A method's step is a small program that asks: it yields a ``Query`` and receives the noisy answer.
It never touches a noise source, and what it asks is what is charged.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from plumbline.clipping import Clipping, Flat
from plumbline.evaluation import Batch, Evaluation, Plain
from plumbline.mechanism.release import GaussianQuery, Query

Program = Generator[Query, dict[str, Tensor], dict[str, Tensor]]


@dataclass
class Method:
    """An evaluation and a clipping, composed.

    Attributes:
        name: For the ledger and the statement.
        evaluation: Where each record's gradient is taken.
        clipping: By what factor it is scaled.
        noisy: False for a baseline without noise, which has no guarantee.
    """

    name: str
    evaluation: Evaluation
    clipping: Clipping
    noisy: bool = True

    @property
    def unbounded_reason(self) -> str | None:
        """Why the method has no guarantee, or None."""
        return None if self.noisy else f"the method '{self.name}' adds no noise"

    def queries(self, noise_multiplier: float) -> tuple[GaussianQuery, ...]:
        """The questions of one step, sensitivities in units of themselves."""
        sigma = noise_multiplier if self.noisy else 0.0
        return (GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=sigma),)

    def step(self, batch: Batch) -> Program:
        """One step: the clipped sum is asked for, and the noisy mean is the update."""
        total = batch.zeros()
        for chunk in batch.chunks():
            gradients = self.evaluation.gradients(chunk)
            factors = self.clipping.safe_factors(gradients.norms(), gradients.losses)
            for name, part in gradients.sum(factors).items():
                total[name] += part
        noisy = yield Query(
            value=total,
            sensitivity=self.clipping.sensitivity,
            sigma=batch.noise_multiplier if self.noisy else 0.0,
        )
        return {name: value / batch.expected_size for name, value in noisy.items()}

    def state_dict(self) -> dict[str, Any]:
        """What the method carries from step to step."""
        return {
            "evaluation": self.evaluation.state_dict(),
            "clipping": self.clipping.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a state that ``state_dict`` gave."""
        self.evaluation.load_state_dict(state["evaluation"])
        self.clipping.load_state_dict(state["clipping"])


def compose(
    *, evaluation: Evaluation | None = None, clipping: Clipping, name: str | None = None
) -> Method:
    """A method from its parts; the evaluation is the ordinary gradient by default."""
    evaluation = evaluation or Plain()
    label = name or f"{type(evaluation).__name__} + {type(clipping).__name__}"
    return Method(name=label, evaluation=evaluation, clipping=clipping)


def dpsgd(clip: float = 1.0) -> Method:
    """DP-SGD (Abadi et al., 2016): flat clipping of the ordinary gradient."""
    return compose(clipping=Flat(clip), name="dpsgd")


def clipped_only(clip: float = 1.0) -> Method:
    """Clipped SGD without noise: what clipping alone does. No guarantee."""
    return Method(name="clipped_only", evaluation=Plain(), clipping=Flat(clip), noisy=False)
