"""Real private runs that are recorded, and what slow references to compare them with are made of.

A reference is a plain loop over single records: autograd's gradient of one record's loss at a copy
of the weights, written from the paper's equation with the corrections of methods.md, and nothing of
plumbline's clipping or evaluation. Only the raw random numbers are the run's own: its noise, and
the draws that belong to a record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients.kernels import KERNELS
from plumbline.gradients.summation import ROUNDING
from plumbline.mechanism.noise import gaussian, rounding_sensitivity
from plumbline.record_random import Draws

RECORDS, STEPS, EXPECTED, SIGMA, RATE, CLIP = 30, 5, 6, 0.5, 0.1, 5.0
SEED = 13123  # its batches have 6, 6, 0, 6 and 9 records: an empty one among full ones
LOSS = nn.CrossEntropyLoss(reduction="none")
CHUNKS = {"whole": None, "chunks": 3}


def images(records: int = RECORDS) -> tuple[Tensor, Tensor]:
    """Float64, so that 1e-5 tells a wrong formula from rounding; of unequal sizes of gradient."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 1, 6, 6, generator=generator, dtype=torch.float64)
    return x, (x.sum((1, 2, 3)) > 0).long()


def network(normalisation: nn.Module | None = None) -> nn.Sequential:
    """A small image classifier, some of whose records have much longer gradients than others."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3),
            nn.GroupNorm(1, 3) if normalisation is None else normalisation,
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(48, 2),
        ).double()
    with torch.no_grad():
        model[-1].weight.mul_(4)  # so that it is sure of itself, and here and there wrong
    return model


def flat(tensors: Any) -> Tensor:
    """Tensors, or those of a mapping, as one vector."""
    values = tensors.values() if isinstance(tensors, dict) else tensors
    return torch.cat([value.detach().flatten() for value in values])


class Recording(torch.optim.SGD):
    """Plain descent that keeps the gradients it was given."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.given: list[Tensor] = []

    def step(self, closure: Any = None) -> None:
        self.given.append(flat([p.grad for p in self.param_groups[0]["params"]]))
        super().step(closure)


@dataclass
class Run:
    """A private run as it went.

    Attributes:
        start: The model as it was before.
        batches: The records of each step, and ``units`` their units (records, or users).
        updates: What the optimizer was given in each step.
        weights: The weights after each step.
        states: What the method carried after each step, what it keeps of single records included.
    """

    private: pl.Private
    start: nn.Module
    data: tuple[Tensor, Tensor]
    batches: list[list[int]] = field(default_factory=list)
    units: list[list[int]] = field(default_factory=list)
    updates: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)


def prepare(
    method: pl.methods.Method,
    model: nn.Module | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    steps: int = STEPS,
    expected: int = EXPECTED,
    **settings: Any,
) -> pl.Private:
    """A run, ready to begin."""
    model = network() if model is None else model
    budget = pl.Budget(
        noise_multiplier=SIGMA, delta=1e-3, steps=steps, expected_batch_size=expected
    )
    return pl.make_private(
        model,
        Recording(model.parameters(), lr=RATE),
        images() if data is None else data,
        method=method,
        budget=budget,
        **{"loss": LOSS, "seed": SEED, **settings},
    )


def train(
    method: pl.methods.Method,
    model: nn.Module | None = None,
    data: tuple[Tensor, Tensor] | None = None,
    **settings: Any,
) -> Run:
    """A whole run, recorded, in the same order of sums every time."""
    model = network() if model is None else model
    data = images() if data is None else data
    start = copy.deepcopy(model)
    private = prepare(method, model, data, deterministic=True, **settings)
    run = Run(private, start, data)
    try:
        for batch in private:
            run.batches.append(batch.indices.tolist())
            run.units.append(batch.unit_ids.tolist())
            private.step(batch)
            run.weights.append(flat(model.parameters()))
            run.states.append(_state(private.method))
    finally:
        private.close()
        KERNELS.forget()  # which the run has pinned for the whole process
    assert isinstance(private.optimizer, Recording)
    run.updates = private.optimizer.given
    return run


def _state(method: Any) -> dict[str, Any]:
    """What a method carries, by name, with tensors flat."""
    stored = method.state_dict()
    state: dict[str, Any] = {}
    kept = method.private_state_dict().values()
    for part in (*stored["evaluation"], stored["clipping"], *kept):
        assert not state.keys() & part.keys()
        state |= {name: _flat_state(value) for name, value in part.items()}
    return state


def _flat_state(value: Any) -> Any:
    if isinstance(value, dict):
        return flat(value)
    if isinstance(value, list):
        return [_flat_state(part) for part in value]
    return torch.tensor(value, dtype=torch.float64)


def close(found: Any, expected: Any, *, what: str = "") -> None:
    """To 1e-5, as the issue asks; what is zero but for rounding counts as zero."""
    torch.testing.assert_close(
        found, expected, rtol=1e-5, atol=1e-8, msg=lambda text: f"{what}: {text}"
    )


class Reference:
    """A method as a loop over records; its weights are its own and follow its own updates.

    A subclass says what one step's update is, and what state it carries.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.x, self.y = run.data
        self.expected = run.private.plan.expected_batch_size
        self.theta = flat(run.start.parameters())

    def update(self, step: int, batch: list[int]) -> Tensor:
        """What the optimizer is given."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What is carried to the next step, by name; vectors flat."""
        return {}

    def check(self) -> None:
        """Compares every step's update and state, and the weights after it."""
        run = self.run
        for step, batch in enumerate(run.batches):
            update = self.update(step, batch)
            close(run.updates[step], update, what=f"update of step {step}")
            state = {
                name: [torch.as_tensor(part, dtype=torch.float64) for part in value]
                if isinstance(value, list)
                else torch.as_tensor(value, dtype=torch.float64)
                for name, value in self.state().items()
            }
            close(run.states[step], state, what=f"state after step {step}")
            self.theta = self.theta - RATE * update
            close(run.weights[step], self.theta, what=f"weights after step {step}")

    def model(self, at: Tensor | None = None) -> nn.Module:
        """A copy of the model, at some weights."""
        model = copy.deepcopy(self.run.start)
        values = self.theta if at is None else at
        nn.utils.vector_to_parameters(values.clone(), list(model.parameters()))
        return model

    def slope(self, x: Tensor, y: Tensor, at: Tensor | None = None) -> Tensor:
        """The gradient of a record's loss, or of the mean over its views, at a copy of ``at``."""
        model = self.model(at)
        loss = LOSS(model(x), y).mean()
        return flat(torch.autograd.grad(loss, list(model.parameters())))

    def gradient(self, record: int, at: Tensor | None = None) -> Tensor:
        """A record's gradient at the present weights, or at others."""
        return self.slope(self.x[record : record + 1], self.y[record : record + 1], at)

    def zero(self) -> Tensor:
        return torch.zeros_like(self.theta)

    def noisy(
        self,
        value: Tensor,
        sensitivity: float,
        step: int,
        place: int | None,
        sigma: float,
        rounding: float = ROUNDING,
    ) -> Tensor:
        """With the run's own noise; ``place`` is None for the gradient, else the question's.

        ``rounding`` is what is charged for that of a sum of gradients; counts are exact.
        """
        sensitivity *= 1 + rounding
        position = (step,) if place is None else (step, place)
        drawn = gaussian(self.run.private._source.stream("noise", *position), value.numel())
        std = sigma * (
            sensitivity + rounding_sensitivity(sigma * sensitivity, value.numel())
        )  # the grid's own share, 1e-11 of it
        return value + std * drawn.view_as(value)

    def released(
        self, total: Tensor, sensitivity: float, step: int, place: int | None = None
    ) -> Tensor:
        """``(total + N(0, (sigma sensitivity)^2)) / L`` (methods.md, A1 and A2)."""
        return self.noisy(total, sensitivity, step, place, SIGMA) / self.expected

    def draws(self, purpose: str, step: int, number: int) -> Draws:
        """The raw random numbers of a record (or another unit) in a step."""
        key = self.run.private.draws_key(step)
        return Draws(torch.tensor([number]), f"{purpose} {key}")


def clipped(gradient: Tensor, clip: float = CLIP) -> Tensor:
    """``g / max(1, |g| / C)`` (Abadi et al. 2016, Alg. 1)."""
    return gradient / max(1.0, float(gradient.norm()) / clip)


@dataclass(frozen=True)
class Case:
    """A named method and its reference.

    Attributes:
        method: The method, by its name in the registry.
        reference: Makes the reference for a run.
        variant: What is special about its settings, if anything.
        settings: For ``train``, by a function, so that every run gets objects of its own.
    """

    method: pl.methods.Method
    reference: Callable[[Run], Reference]
    variant: str = ""
    settings: Callable[[], dict[str, Any]] = dict

    def __str__(self) -> str:
        return f"{self.method.name}, {self.variant}" if self.variant else self.method.name

    def check(self, most: int | None) -> Run:
        """Trains, follows the training with the reference, and returns the run."""
        settings = self.settings()
        run = train(self.method, max_physical_batch=most, **settings)
        if "expected" not in settings:
            assert [len(units) for units in run.units] == [6, 6, 0, 6, 9]
        self.reference(run).check()
        return run
