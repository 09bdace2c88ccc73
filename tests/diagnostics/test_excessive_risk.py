"""Excessive risk: against measured changes of loss, dense Hessians and the propositions."""

import json

import pytest
import torch
from torch import Tensor, nn

from plumbline.clipping import Flat, Global
from plumbline.diagnostics import (
    ExcessiveRisk,
    Hessian,
    Sample,
    Trace,
    Undefined,
    excessive_risk,
    risk_gap_bounds,
    spectrum,
    to_json,
)
from plumbline.diagnostics.landscape import moved
from tests.diagnostics.problems import loss_of

CE = nn.CrossEntropyLoss(reduction="none")
RECORDS, CLIP = 60, 0.3


class Problem:
    """A small network (or a convex one), two groups, three batches, in float64."""

    def __init__(self, convex: bool = False, clip: float = CLIP) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(RECORDS, 4, generator=generator, dtype=torch.float64)
        self.y = (self.x[:, 0] + 0.5 * self.x[:, 1] ** 2 > 0).long()
        self.x[::2] *= 3  # the first group's gradients are longer
        with torch.random.fork_rng():
            torch.manual_seed(1)
            layers = [nn.Linear(4, 2)] if convex else [nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)]
            self.model = nn.Sequential(*layers).double()
        self.batches = [
            Sample.take(self.model, loss_of, self.batch(torch.arange(i, RECORDS, 3)), Flat(clip))
            for i in range(3)
        ]

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def losses(self, index: Tensor):  # type: ignore[no-untyped-def]
        return lambda: CE(self.model(self.x[index]), self.y[index])

    def group(self, number: int) -> Hessian:
        return Hessian(self.model, self.losses(torch.arange(number, RECORDS, 2)))

    def loss_after(self, number: int, step: dict[str, Tensor], rate: float) -> float:
        with (
            moved(self.model, {name: -rate * value for name, value in step.items()}),
            torch.no_grad(),
        ):
            return float(self.losses(torch.arange(number, RECORDS, 2))().mean())


def mean_change(problem: Problem, rate: float, first: str, second: str) -> float:
    """How much more the group loses with the one update than with the other, measured."""

    def update(sample: Sample, kind: str) -> dict[str, Tensor]:
        g, gbar = sample.mean, sample.clipped_mean
        sizes = [torch.cat([v.flatten() for v in one.values()]).norm() for one in (g, gbar)]
        made = {
            "true": g,
            "clipped": gbar,
            "shorter": {name: value * sizes[1] / sizes[0] for name, value in g.items()},
            "turned": {name: value * sizes[0] / sizes[1] for name, value in gbar.items()},
        }
        return made[kind]

    changes = [
        problem.loss_after(0, update(sample, first), rate)
        - problem.loss_after(0, update(sample, second), rate)
        for sample in problem.batches
    ]
    return sum(changes) / len(changes)


@pytest.mark.parametrize(
    ("term", "first", "second"),
    [
        ("clip", "clipped", "true"),
        ("magnitude", "shorter", "true"),  # Eq. 14
        ("direction", "clipped", "shorter"),  # Eq. 15
        ("direction_star", "turned", "true"),  # Eq. 16
        ("magnitude_star", "clipped", "turned"),  # Eq. 17
    ],
)
def test_each_term_predicts_the_measured_change_to_third_order(
    term: str, first: str, second: str
) -> None:
    problem = Problem()
    hessian = problem.group(0)
    errors = []
    for rate in (0.02, 0.01, 0.005):  # small, as a Taylor expansion wants them
        predicted = getattr(excessive_risk(hessian, problem.batches, rate), term)
        errors.append(abs(predicted - mean_change(problem, rate, first, second)))
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.25)
    assert errors[1] / errors[2] == pytest.approx(8, rel=0.25)


def test_both_splits_add_up() -> None:
    problem = Problem()
    risk = excessive_risk(problem.group(0), problem.batches, 0.3)
    assert risk.magnitude + risk.direction == pytest.approx(risk.clip, abs=1e-12)
    assert risk.magnitude_star + risk.direction_star == pytest.approx(risk.clip, abs=1e-12)


def test_without_clipping_there_is_no_risk_from_it() -> None:
    problem = Problem(clip=1e6)
    risk = excessive_risk(problem.group(1), problem.batches, 0.3)
    for term in (risk.clip, risk.magnitude, risk.direction, risk.noise):
        assert term == pytest.approx(0, abs=1e-12)


def test_scaling_all_records_alike_leaves_no_direction_error() -> None:
    problem = Problem()
    scaled = [Sample(one.gradients, Global(1.0, 1e3)) for one in problem.batches]
    risk = excessive_risk(problem.group(0), scaled, 0.3)
    assert risk.direction == pytest.approx(0, abs=1e-9)
    assert abs(risk.magnitude) > 1e-3


def test_noise_raises_the_loss_by_the_trace() -> None:
    # Prop. 1 with the division by L^2 and a plus sign, against a simulation of noisy steps.
    problem = Problem(convex=True)
    hessian = problem.group(0)
    size = hessian.size
    dense = torch.stack([hessian(row) for row in torch.eye(size, dtype=torch.float64)])
    noisy = [
        Sample(one.gradients, one.clipping, noise_multiplier=4.0, expected_size=20)
        for one in problem.batches
    ]
    rate = 0.05
    risk = excessive_risk(hessian, noisy, rate, Trace(float(dense.trace()), 0.0))
    generator = torch.Generator().manual_seed(3)
    names = list(problem.batches[0].mean)
    shapes = [problem.batches[0].mean[name].shape for name in names]
    changes = []
    for _ in range(3000):
        drawn = torch.randn(size, generator=generator, dtype=torch.float64) * (4.0 * CLIP / 20)
        parts = torch.split(drawn, [shape.numel() for shape in shapes])
        noise = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        # An update and its mirror image: what is of first order cancels.
        pair = [problem.loss_after(0, noise, sign * rate) for sign in (1, -1)]
        changes.append(sum(pair) / 2 - problem.loss_after(0, noise, 0.0))
    found = torch.tensor(changes)
    error = float(found.std() / len(found) ** 0.5)
    assert risk.noise == pytest.approx(float(found.mean()), abs=5 * error)
    assert risk.noise > 0


def test_the_bounds_on_the_gap_hold_for_a_convex_loss() -> None:
    problem = Problem(convex=True)
    groups = [problem.group(0), problem.group(1)]
    largest = [
        spectrum(one, torch.Generator().manual_seed(0), steps=one.size).largest[0] for one in groups
    ]
    rate = 0.9 / max(largest)
    risks = [excessive_risk(one, problem.batches, rate) for one in groups]
    for a, b in ((0, 1), (1, 0)):
        bounds = risk_gap_bounds(
            risks[a],
            risks[b],
            problem.batches,
            learning_rate=rate,
            eigenvalues=(largest[a], largest[b]),
            shares=(0.5, 0.5),
        )
        assert bounds.stable
        assert bounds.direction_simple <= bounds.direction
        assert bounds.direction <= risks[a].direction - risks[b].direction
        assert bounds.direction_star <= risks[a].direction_star - risks[b].direction_star
        assert bounds.clipping <= risks[a].clip - risks[b].clip
    assert not risk_gap_bounds(
        *risks,
        problem.batches,
        learning_rate=2 / max(largest),
        eigenvalues=(largest[0], largest[1]),
        shares=(0.5, 0.5),
    ).stable


def test_what_cannot_be_known_says_why() -> None:
    problem = Problem()
    group = problem.group(0)
    none = excessive_risk(group, [], 0.1)
    assert none.clip == Undefined("no batch was given")
    index = torch.zeros(0, dtype=torch.long)
    empty = excessive_risk(Hessian(problem.model, problem.losses(index)), problem.batches, 0.1)
    assert empty.clip == Undefined("the group has no records")
    noisy = [Sample(one.gradients, one.clipping, 1.0) for one in problem.batches]
    assert "no trace" in str(excessive_risk(group, noisy, 0.1).noise)
    gone = [Sample(one.gradients, Global(1e-9, 1e-9)) for one in problem.batches]
    dropped = excessive_risk(group, gone, 0.1)
    assert isinstance(dropped.direction, Undefined)
    assert isinstance(dropped.clip, float)
    bounds = risk_gap_bounds(
        none, none, problem.batches, learning_rate=0.1, eigenvalues=(1, 1), shares=(0.5, 0.5)
    )
    assert isinstance(bounds.direction, Undefined)
    for result in (none, empty, dropped, bounds):
        assert isinstance(result, ExcessiveRisk) or result is bounds
        json.dumps(to_json(result), allow_nan=False)
