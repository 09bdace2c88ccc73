"""Spectrum, trace and density against known eigenvalues and dense Hessians."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from plumbline.diagnostics import Density, Hessian, density, spectrum, trace
from plumbline.diagnostics.landscape import moved
from tests.diagnostics.problems import (
    Learning,
    Quadratic,
    assert_plain,
    assert_undefined,
    dense,
    generator,
    logistic,
    network,
    normal,
)

EIGENVALUES = [9.0, 6.5, 4.0, 2.5, 1.5, 0.5, 0.0, -1.0]


def hessian_of(problem: Learning) -> Tensor:
    """The dense Hessian of the mean loss, by torch's own double differentiation."""
    parameters = {name: p.detach() for name, p in problem.model.named_parameters()}
    shapes = [p.shape for p in parameters.values()]

    def loss(vector: Tensor) -> Tensor:
        pieces = vector.split([shape.numel() for shape in shapes])
        shaped = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        named = dict(zip(parameters, shaped, strict=True))
        logits = functional_call(problem.model, named, (problem.x,))
        return nn.functional.cross_entropy(logits, problem.y)

    vector = torch.cat([p.flatten() for p in parameters.values()])
    return torch.autograd.functional.hessian(loss, vector)


class Matrix:
    """A dense symmetric matrix as an operator."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def size(self) -> int:
        return len(self.values)

    def __call__(self, vector: Tensor) -> Tensor:
        return self.values @ vector


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def test_a_quadratics_spectrum_is_exact() -> None:
    problem = Quadratic(EIGENVALUES)
    found = spectrum(Hessian(problem, problem.losses), generator(), count=8)
    assert found.largest == pytest.approx(EIGENVALUES, abs=1e-9)
    assert found.smallest == pytest.approx(-1.0)
    assert found.ratio == pytest.approx(9.0 / 1.5)
    four = spectrum(Hessian(problem, problem.losses), generator(), count=2)
    assert four.largest == found.largest[:2]


def test_a_diagonal_traces_estimate_is_exact() -> None:
    found = trace(Matrix(torch.diag(torch.tensor(EIGENVALUES).double())), generator(), probes=5)
    assert found.value == pytest.approx(sum(EIGENVALUES), rel=1e-14)
    assert found.standard_error == pytest.approx(0.0, abs=1e-14)


def test_the_trace_and_its_standard_error() -> None:
    problem = Quadratic(EIGENVALUES)
    found = trace(Hessian(problem, problem.losses), generator(), probes=800)
    assert abs(found.value - sum(EIGENVALUES)) < 4 * found.standard_error
    # Of random signs, the variance is twice the sum of squares off the diagonal.
    off = problem.hessian - torch.diag(problem.hessian.diagonal())
    expected = math.sqrt(2 * float(off.square().sum()) / 800)
    assert found.standard_error == pytest.approx(expected, rel=0.1)


def test_logistic_regression_against_its_dense_hessian() -> None:
    problem, matrix = logistic()
    hessian = Hessian(problem.model, problem.losses)
    assert hessian.size == 7
    for vector in (*torch.eye(7).double(), normal(7)):
        assert relative(hessian(vector), matrix @ vector) < 1e-10
    assert relative(hessian.gradient, dense(problem.sample()).mean(0)) < 1e-10
    assert hessian.loss == pytest.approx(problem.loss())
    true = torch.linalg.eigvalsh(matrix).flip(0)
    found = spectrum(hessian, generator(), count=7)
    assert found.largest == pytest.approx(true.tolist(), rel=1e-6)
    assert found.ratio == pytest.approx(float(true[0] / true[4]), rel=1e-6)
    estimate = trace(hessian, generator(), probes=400)
    assert abs(estimate.value - float(matrix.trace())) < 4 * estimate.standard_error
    # The same signs on the dense matrix give the same estimate.
    again = trace(Matrix(matrix), generator(), probes=400)
    assert estimate.value == pytest.approx(again.value, rel=1e-6)
    assert estimate.standard_error == pytest.approx(again.standard_error, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_network_against_its_dense_hessian(dtype: torch.dtype) -> None:
    matrix = hessian_of(network())
    problem = network(dtype=dtype)
    hessian = Hessian(problem.model, problem.losses)
    near = 1e-9 if dtype == torch.float64 else 1e-5
    vector = normal(len(matrix))
    assert relative(hessian(vector), matrix @ vector) < near
    true = torch.linalg.eigvalsh(matrix).flip(0)
    found = spectrum(hessian, generator(), steps=80)
    assert found.largest == pytest.approx(true[:5].tolist(), rel=max(near, 1e-6))
    assert found.smallest == pytest.approx(float(true[-1]), rel=max(near, 1e-6))
    # Chunks of the records are the same problem.
    halves = [
        lambda part=part: nn.functional.cross_entropy(
            problem.model(problem.x[part]), problem.y[part], reduction="none"
        )
        for part in (slice(0, 7), slice(7, 24))
    ]
    chunked = Hessian(problem.model, halves)
    assert chunked.records == 24
    assert chunked.loss == pytest.approx(hessian.loss)
    assert relative(chunked(vector), hessian(vector).double()) < near
    assert relative(chunked.gradient, hessian.gradient.double()) < near


def test_ritz_values_approach_from_within() -> None:
    problem = Quadratic(EIGENVALUES)
    hessian = Hessian(problem, problem.losses)
    found = [spectrum(hessian, generator(), steps=steps) for steps in range(1, 9)]
    tops = [one.largest[0] for one in found]
    assert tops == sorted(tops)
    assert all(top <= 9 + 1e-9 for top in tops)
    assert all(one.smallest >= -1 - 1e-9 for one in found)


def test_a_repeated_eigenvalue_is_found_once() -> None:
    found = spectrum(Matrix(torch.diag(torch.tensor([3.0, 3, 3, 2, 2, 1])).double()), generator())
    assert found.largest == pytest.approx([3, 2, 1])
    assert_undefined(found.ratio, "fewer than five")


def test_density_has_atoms_at_the_eigenvalues() -> None:
    problem = Quadratic(EIGENVALUES)
    hessian = Hessian(problem, problem.losses)
    found = density(hessian, generator(), steps=8)
    assert found.values == pytest.approx(sorted(EIGENVALUES), abs=1e-9)
    assert sum(found.weights) == pytest.approx(1.0)
    assert min(found.weights) >= 0
    # Fewer steps keep as many moments as Gauss' quadrature does: 2 k - 1.
    short = density(hessian, generator(), steps=3)
    for power in range(6):
        assert moment(short, power) == pytest.approx(moment(found, power), rel=1e-9)


def moment(found: Density, power: int) -> float:
    return sum(w * v**power for v, w in zip(found.values, found.weights, strict=True))


@pytest.mark.parametrize("case", ["quadratic", "logistic"])
def test_moments_are_those_of_the_eigenvalues(case: str) -> None:
    matrix = Quadratic(EIGENVALUES).hessian if case == "quadratic" else logistic()[1]
    size, operator, draw = len(matrix), Matrix(matrix), generator()
    single = [density(operator, draw, steps=2) for _ in range(800)]
    for power, expected in ((1, matrix.trace() / size), (2, (matrix @ matrix).trace() / size)):
        found = torch.tensor([moment(one, power) for one in single])
        error = float(found.std()) / math.sqrt(len(found))
        assert abs(float(found.mean()) - float(expected)) < 4 * error
    assert sum(single[0].weights) == pytest.approx(1.0)
    assert single[0].values == sorted(single[0].values)


def test_the_densitys_curve_encloses_one() -> None:
    found = Density([0.0, 1.0, 4.0], [0.5, 0.3, 0.2])
    grid, heights = found.curve(points=4000)
    width = grid[1] - grid[0]
    assert sum(heights) * width == pytest.approx(1.0, abs=1e-3)
    assert grid[0] < 0
    assert grid[-1] > 4
    assert all(map(math.isfinite, Density([2.0], [1.0]).curve()[1]))


def test_attention_is_differentiated_twice() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    x = normal(3, 4, 8).float()
    hessian = Hessian(model, lambda: model(x).square().mean((1, 2)))
    first, second = normal(hessian.size), normal(hessian.size, seed=1)
    forth, back = torch.dot(first, hessian(second)), torch.dot(second, hessian(first))
    assert float(forth) == pytest.approx(float(back), rel=1e-4)
    assert float(hessian(first).norm()) > 0


def test_looking_elsewhere_leaves_the_hessian_as_it_was() -> None:
    problem, matrix = logistic()
    hessian = Hessian(problem.model, problem.losses)
    with moved(problem.model, {"weight": torch.ones(1, 6).double()}):
        problem.loss()
    vector = normal(7)
    assert relative(hessian(vector), matrix @ vector) < 1e-10


def nothing() -> Hessian:
    problem = network(records=0)
    return Hessian(problem.model, problem.losses)


def spoilt() -> Hessian:
    problem = network()
    problem.x[3, 0, 0, 0] = math.nan
    return Hessian(problem.model, problem.losses)


@pytest.mark.parametrize(
    ("make", "reason"), [(nothing, "no records"), (spoilt, "not finite")], ids=["empty", "NaN"]
)
def test_bad_records_are_undefined(make, reason: str) -> None:
    hessian = make()
    for measure in (spectrum, trace, density):
        result = measure(hessian, generator())
        assert_undefined(result, reason)
        assert_plain(result)


def test_what_cannot_be_told() -> None:
    assert_undefined(nothing().loss, "no records")
    assert float(nothing().gradient.norm()) == 0
    operator = Matrix(torch.diag(torch.tensor([3.0, 2, 1, 0, -1, -2])).double())
    assert_undefined(spectrum(operator, generator()).ratio, "not positive")
    assert_undefined(trace(operator, generator(), probes=1).standard_error, "one probe")
    flat_one = spectrum(Matrix(torch.zeros(6, 6).double()), generator())
    assert flat_one.largest == [0.0]
    assert_plain(flat_one)
    linear = nn.Linear(3, 1, bias=False).double()
    straight = Hessian(linear, lambda: linear(normal(4, 3))[:, 0])
    assert float(straight(normal(3)).norm()) == 0
    assert trace(straight, generator(), probes=3).value == 0
    for parameter in linear.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameters"):
        Hessian(linear, lambda: linear(normal(4, 3))[:, 0])
    for measure, name in itertools.product((spectrum, density), ("steps",)):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            measure(operator, generator(), **{name: 0})
    with pytest.raises(ValueError, match="probes is 0"):
        trace(operator, generator(), probes=0)
