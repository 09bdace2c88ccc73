"""Estimated sharpness by hand, paper 002's bounds on constructed problems, and its two minima."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plumbline.diagnostics import (
    descend_two_minima,
    estimated_sharpness,
    noise_bound,
    two_minima,
)
from plumbline.diagnostics.sharpness import _curvatures, _gradient
from tests.diagnostics.problems import (
    BAD,
    Quadratic,
    assert_plain,
    assert_undefined,
    dense,
    generator,
    logistic,
    network,
    normal,
    rows,
)

FLAT, SHARP = (torch.tensor([v, v], dtype=torch.float64) for v in (2.5, 7.5))
DIAGONAL = torch.tensor([1.0, 1.0], dtype=torch.float64) / math.sqrt(2)


def test_estimated_sharpness_is_the_rise_along_the_gradient() -> None:
    problem, _ = logistic()
    sample = problem.sample()
    before, weight = problem.loss(), problem.model.weight.detach().clone()
    found = estimated_sharpness(problem.model, sample, problem.loss, 0.3)
    assert torch.equal(problem.model.weight, weight)
    g = dense(sample).mean(0)
    step = 0.3 * g / g.norm()
    with torch.no_grad():
        problem.model.weight += step[:6]
        problem.model.bias += step[6:]
    assert found == pytest.approx(problem.loss() - before, rel=1e-9)
    assert found > 0


def test_estimated_sharpness_of_a_quadratic() -> None:
    problem = Quadratic([5.0, 2.0, 1.0])

    def loss() -> float:
        return float(problem.losses().mean().detach())

    gradients = (problem.weight.detach() - problem.centres) @ problem.hessian
    g = gradients.mean(0)
    found = estimated_sharpness(problem, rows(gradients), loss, 0.1)
    along = g / g.norm()
    expected = 0.1 * float(g.norm()) + 0.005 * float(along @ problem.hessian @ along)
    assert found == pytest.approx(expected)


def test_sharpness_that_cannot_be_told() -> None:
    problem = network()
    for case, reason in (("no records", "no records"), ("mean gradient zero", "is zero")):
        assert_undefined(estimated_sharpness(problem.model, BAD[case](), problem.loss, 0.1), reason)
    sample = problem.sample()
    problem.x[0] = math.nan
    assert_undefined(estimated_sharpness(problem.model, sample, problem.loss, 0.1), "not finite")


@given(st.integers(0, 10_000), st.floats(0.001, 1))
def test_theorem_3_2_holds_on_quadratics(seed: int, rate: float) -> None:
    problem = Quadratic([5.0, 2.0, -3.0], seed % 100)
    w, noise = normal(3, seed=seed), normal(3, seed=seed + 1)
    g = (w - problem.centres).mean(0) @ problem.hessian
    apart = problem.hessian @ ((w - rate * g) - (w - rate * (g + noise)))
    bound = noise_bound(rate, 5.0, float(noise.norm()))
    assert bound == pytest.approx(rate * 5 * float(noise.norm()))
    assert float(apart.norm()) <= bound + 1e-12
    # Equality for noise along the sharpest direction.
    sharpest = torch.linalg.eigh(problem.hessian)[1][:, -1]
    apart = problem.hessian @ (rate * sharpest)
    assert float(apart.norm()) == pytest.approx(noise_bound(rate, 5.0, 1.0))


def test_both_minima_lie_at_their_centres_with_value_zero() -> None:
    # Zero up to what the other part weighs there, exp(-sqrt(50)) = 0.0008.
    leak = math.exp(-math.sqrt(50))
    values = two_minima(torch.stack([FLAT, SHARP]))
    assert values.shape == (2,)
    assert float(values.max()) < leak
    for centre in (FLAT, SHARP):
        for radius in (0.5, 1.0, 1.5):
            angles = torch.linspace(0, 2 * math.pi, 24, dtype=torch.float64)
            ring = centre + radius * torch.stack([angles.cos(), angles.sin()], 1)
            assert float(two_minima(ring).min()) > float(two_minima(centre))
    # Descent from nearby stays within what is level to that leak.
    found = torch.stack([_descended(centre + 0.8 * DIAGONAL) for centre in (FLAT, SHARP)])
    assert float((found - torch.stack([FLAT, SHARP])).norm(dim=1).max()) < 0.6
    assert float(two_minima(found).max()) < 3 * leak


def curvature(w: Tensor) -> float:
    return float(_curvatures(w[None]))


def _descended(w: Tensor) -> Tensor:
    for _ in range(400):
        w = w - 0.5 * _gradient(w)
    return w


def test_values_are_the_formulas() -> None:
    w = torch.tensor([3.0, 4.0], dtype=torch.float64)
    r1, r2 = math.hypot(0.5, 1.5), math.hypot(4.5, 3.5)

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    phi1, phi2 = math.exp(-r1), math.exp(-r2)
    first, second = sigmoid(r1 / 5 - 5 / r1), sigmoid(5 * r2 / 5 - 5 / (5 * r2))
    expected = (first * phi1 + second * phi2) / (phi1 + phi2)
    assert float(two_minima(w)) == pytest.approx(expected)


@pytest.mark.parametrize("radius", [0.2, 0.3, 0.5, 1.0, 1.5])
def test_the_sharp_minimum_is_sharper(radius: float) -> None:
    flat_one, sharp_one = (curvature(c - radius * DIAGONAL) for c in (FLAT, SHARP))
    assert sharp_one > 2 * flat_one
    # By finite differences of the gradient, along the steepest direction.
    hessian = torch.stack(
        [
            (_gradient(SHARP - radius * DIAGONAL + e) - _gradient(SHARP - radius * DIAGONAL - e))
            / 2e-5
            for e in 1e-5 * torch.eye(2).double()
        ]
    )
    assert sharp_one == pytest.approx(float(torch.linalg.matrix_norm(hessian, 2)), rel=1e-4)


def test_noise_moves_the_gradient_by_at_most_the_bound_and_more_where_it_is_sharp() -> None:
    runs = {}
    for name, centre in (("flat", FLAT), ("sharp", SHARP)):
        runs[name] = descend_two_minima(
            centre + 1.2 * DIAGONAL, generator(), steps=40, learning_rate=0.2, noise=0.1
        )
        assert len(runs[name]) == 40
        for step in runs[name]:
            assert step.difference <= step.bound * (1 + 1e-6)
            assert step.bound > 0
        assert_plain(runs[name])
    mean = {name: sum(one.difference for one in run) / 40 for name, run in runs.items()}
    steep = {name: sum(one.sharpness for one in run) / 40 for name, run in runs.items()}
    assert mean["sharp"] > 2 * mean["flat"]
    assert steep["sharp"] > 2 * steep["flat"]
    # Sharpness and difference go together (Fig. 4).
    both = torch.tensor([(one.sharpness, one.difference) for run in runs.values() for one in run])
    assert float(torch.corrcoef(both.T)[0, 1]) > 0.5


def test_the_same_noise_is_drawn_for_the_same_seed() -> None:
    first, second = (
        descend_two_minima(FLAT + 1, generator(3), steps=3, learning_rate=0.1, noise=0.1)
        for _ in range(2)
    )
    assert first == second


def test_the_bound_counts_where_the_step_leads() -> None:
    # One step: the weights are those given, and the noise is the generator's first draw.
    start = SHARP + torch.tensor([0.5, 0.0], dtype=torch.float64)
    (step,) = descend_two_minima(start, generator(4), steps=1, learning_rate=0.3, noise=0.2)
    drawn = 0.2 * torch.randn(2, generator=generator(4), dtype=torch.float64)
    clean = start - 0.3 * _gradient(start)
    apart = _gradient(clean) - _gradient(clean - 0.3 * drawn)
    assert step.difference == pytest.approx(float(apart.norm()))
    assert step.sharpness == pytest.approx(curvature(start))
    assert step.bound >= noise_bound(0.3, curvature(clean), float(drawn.norm())) * (1 - 1e-9)
    # At a centre the other part has a kink.
    (stuck,) = descend_two_minima(FLAT, generator(4), steps=1, learning_rate=0.3, noise=0.2)
    assert_undefined(stuck.sharpness, "kink")
    assert_plain(stuck)
