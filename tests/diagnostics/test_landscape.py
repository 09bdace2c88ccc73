"""Filter norms, exact centres and ends, and weights that are always put back."""

import math

import pytest
import torch
from torch import nn

from plumbline.diagnostics import Undefined, interpolation, landscape
from plumbline.diagnostics.landscape import filter_normalised, moved, placed
from tests.diagnostics.problems import (
    Learning,
    Quadratic,
    assert_plain,
    generator,
    network,
    normal,
)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_unmoved(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    """To the last bit."""
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
        assert parameter.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_filter_of_a_direction_is_as_long_as_the_models(dtype: torch.dtype) -> None:
    model = network(dtype=dtype).model
    with torch.no_grad():
        model[3].weight[1] = 0  # a filter of length zero does not move
    direction = filter_normalised(model, generator())
    for name, parameter in model.named_parameters():
        found, own = direction[name], parameter.detach()
        assert found.dtype == dtype
        if name.endswith("bias"):
            assert not found.any()
            continue
        for one, filter_ in zip(found, own, strict=True):  # a kernel, or an output's row
            assert float(one.norm()) == pytest.approx(float(filter_.norm()), rel=1e-6)
    another = filter_normalised(model, generator(1))
    assert not torch.equal(direction["0.weight"], another["0.weight"])


@pytest.mark.parametrize("points", [1, 3, 5, 7])
@pytest.mark.parametrize("reach", [0.1, 0.7, 1.0])
def test_the_centre_is_the_models_own_loss(points: int, reach: float) -> None:
    problem = network()
    before = weights(problem.model)
    found = landscape(problem.model, problem.loss, generator(), reach=reach, points=points)
    middle = points // 2
    assert found.steps[middle] == 0
    assert found.losses[middle][middle] == problem.loss()  # exactly
    if points > 1:
        assert found.steps[0] == -reach
        assert found.steps[-1] == reach
    assert [len(row) for row in found.losses] == [points] * points
    assert_unmoved(problem.model, before)
    assert_plain(found)


def test_points_lie_where_their_coordinates_say() -> None:
    problem = network()
    draw = generator()
    first, second = (filter_normalised(problem.model, draw) for _ in range(2))
    found = landscape(problem.model, problem.loss, generator(), reach=0.5, points=4)
    assert found.steps == pytest.approx([-0.5, -1 / 6, 1 / 6, 0.5])
    place = {name: 0.5 * first[name] - 1 / 6 * second[name] for name in first}
    with moved(problem.model, place):
        assert found.losses[3][1] == pytest.approx(problem.loss())


class Stop(Exception):
    pass


@pytest.mark.parametrize("after", [1, 3])
def test_weights_are_put_back_after_an_exception(after: int) -> None:
    problem = network()
    before = weights(problem.model)
    calls = 0

    def loss() -> float:
        nonlocal calls
        calls += 1
        if calls == after:
            raise Stop
        return 0.0

    with pytest.raises(Stop):
        landscape(problem.model, loss, generator(), points=3)
    assert_unmoved(problem.model, before)
    calls = 0
    with pytest.raises(Stop):
        interpolation(problem.model, weights(network().model), loss, [0.0, 0.5, 1.0])
    assert_unmoved(problem.model, before)


def test_moving_there_and_back_is_exact() -> None:
    # In floating point, adding and subtracting would not be.
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1e-9)
    before = weights(model)
    with moved(model, {"weight": torch.full((1, 1), 1e9)}):
        assert model.weight.item() == 1e9
    assert_unmoved(model, before)
    with placed(model, {"weight": torch.full((1, 1), 3.0)}):
        assert model(torch.ones(1, 1)).item() == 3.0
    assert_unmoved(model, before)


def other(dtype: torch.dtype = torch.float64) -> Learning:
    problem = network(dtype=dtype)
    draw = generator(12)
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw))
    return problem


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_ends_of_an_interpolation_are_the_two_models(dtype: torch.dtype) -> None:
    first, second = network(dtype=dtype), other(dtype)
    before = weights(first.model)
    ends = weights(second.model)
    found = interpolation(first.model, ends, first.loss, [0.0, 0.25, 1.0, -0.5])
    assert found[0] == first.loss()  # exactly, both
    assert found[2] == second.loss()
    quarter = {name: 0.75 * before[name] + 0.25 * ends[name] for name in before}
    with placed(first.model, quarter):
        assert found[1] == pytest.approx(first.loss(), rel=1e-5)
    assert_unmoved(first.model, before)


def test_an_interpolation_through_a_quadratic_is_a_parabola() -> None:
    problem = Quadratic([4.0, 1.0, 0.5])
    end = {"weight": normal(3, seed=20)}

    def loss() -> float:
        return float(problem.losses().mean().detach())

    positions = torch.linspace(0, 1, 9).tolist()
    found = torch.tensor(interpolation(problem, end, loss, positions))
    away = end["weight"] - problem.weight.detach()
    curved = float(away @ problem.hessian @ away)
    torch.testing.assert_close(found.diff(n=2), torch.full((7,), curved / 64), rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_not_finite_is_undefined() -> None:
    problem = network()
    problem.x[0] = math.nan
    found = landscape(problem.model, problem.loss, generator(), points=3)
    assert all(isinstance(value, Undefined) for row in found.losses for value in row)
    assert_plain(found)
    line = interpolation(problem.model, weights(problem.model), problem.loss, [0.0, 1.0])
    assert [str(value) for value in line] == ["undefined: the loss is not finite"] * 2
