"""The algebra on captured gradients, against the same operations on dense ones."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn

from plumbline.compiled import run_of
from plumbline.gradients import PerSampleGradients, capture, combine
from tests.gradients.harness import Gradients, loop, output_losses, record_norms


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.linear(self.table(tokens))), self.table.weight)


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.scale = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(4))
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return torch.tanh(x * self.scale) * self.temperature


def _standardised() -> nn.Module:
    class Standardise(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight - weight.mean((1, 2, 3), keepdim=True)

    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 2))
    parametrize.register_parametrization(model[0], "weight", Standardise())
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)),
        lambda records: torch.randn(records, 4),
    ),
    "sequence": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2)),
        lambda records: torch.randn(records, 20, 4),
    ),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Conv2d(3, 2, 3)),
        lambda records: torch.randn(records, 2, 7, 7),
    ),
    "tied": (Tied, lambda records: torch.randint(0, 6, (records, 3))),
    "raw": (Raw, lambda records: torch.randn(records, 3, 4)),
    "standardised": (_standardised, lambda records: torch.randn(records, 2, 5, 5)),
}


class Case:
    """A model, and captures of it beside their dense truths."""

    def __init__(self, kind: str) -> None:
        build, self.batch = MODELS[kind]
        self.model = build().double()

    def captured(self, records: int = 5) -> tuple[PerSampleGradients, Gradients]:
        inputs = self.batch(records)
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        found = capture(self.model, output_losses, inputs)
        return found, loop(self.model, inputs)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture(params=[False, True], ids=["at once", "after norms"])
def after_norms(request: pytest.FixtureRequest) -> bool:
    """Whether norms were asked for before: they may keep something that is used afterwards."""
    return bool(request.param)


def assert_is(found: PerSampleGradients, truth: Gradients) -> None:
    """Every operation on ``found`` gives what it gives on dense gradients."""
    records = found.records
    norms = record_norms(truth)
    torch.testing.assert_close(found.norms(), norms, rtol=1e-10, atol=1e-12)
    weights = torch.linspace(-1, 1, records).double()
    total, dense = found.sum(weights), found.materialise()
    direction = {
        name: torch.sin(torch.arange(rows.shape[1:].numel())).view(rows.shape[1:]).double()
        for name, rows in truth.items()
    }
    dots = torch.zeros(records).double()
    for name, rows in truth.items():
        torch.testing.assert_close(dense[name], rows, rtol=1e-9, atol=1e-12)
        expected = torch.einsum("b,b...->...", weights, rows)
        torch.testing.assert_close(total[name], expected, rtol=1e-9, atol=1e-12)
        dots += (rows * direction[name]).reshape(records, rows.shape[1:].numel()).sum(1)
    torch.testing.assert_close(found.dot(direction), dots, rtol=1e-9, atol=1e-12)


class TestCombine:
    def test_two_captures(self, case: Case, after_norms: bool) -> None:
        (first, one), (second, two) = case.captured(), case.captured()
        if after_norms:
            first.norms(), second.norms()
        found = PerSampleGradients.combine([first, second], [0.9, -0.4])
        assert_is(found, {name: 0.9 * one[name] - 0.4 * two[name] for name in one})
        assert torch.equal(found.losses, first.losses)

    def test_one_coefficient_per_record(self, case: Case) -> None:
        (first, one), (second, two) = case.captured(), case.captured()
        factors = torch.tensor([0.5, 0.0, -1.0, 2.0, 1e-3]).double()
        found = combine([first, second], [1, factors])

        def scaled(rows: Tensor) -> Tensor:
            return rows * factors.view(-1, *[1] * (rows.dim() - 1))

        assert_is(found, {name: one[name] + scaled(two[name]) for name in one})

    def test_kept_and_not_kept_parts(self, case: Case) -> None:
        (first, one), (second, two) = case.captured(), case.captured()
        first.norms()
        found = combine([first, second], [1.0, 1.0])
        assert_is(found, {name: one[name] + two[name] for name in one})

    def test_a_long_history(self, case: Case) -> None:
        momentum, truth = case.captured()
        for _ in range(3):
            new, dense = case.captured()
            momentum = combine([momentum, new], [0.9, 1.0])
            truth = {name: 0.9 * truth[name] + dense[name] for name in truth}
        assert_is(momentum, truth)

    def test_the_parts_stay_as_they_were(self, case: Case) -> None:
        (first, one), (second, two) = case.captured(), case.captured()
        combine([first, second], [0.9, -0.4]).sum()
        assert_is(first, one)
        assert_is(second, two)

    def test_with_itself(self, case: Case) -> None:
        first, one = case.captured()
        assert_is(combine([first, first], [2.0, -1.0]), one)

    def test_misfits_are_refused(self) -> None:
        case, other = Case("mlp"), Case("raw")
        first, _ = case.captured()
        with pytest.raises(ValueError, match="2 parts and 1 coefficients"):
            combine([first, first], [1.0])
        with pytest.raises(ValueError, match="0 parts"):
            combine([], [])
        with pytest.raises(ValueError, match=r"same records.*5 and 3 records"):
            combine([first, case.captured(3)[0]], [1.0, 1.0])
        with pytest.raises(ValueError, match="same records and parameters"):
            combine([first, other.captured()[0]], [1.0, 1.0])
        with pytest.raises(ValueError, match="one number per record"):
            combine([first, first], [1.0, torch.ones(3)])


class TestPool:
    @pytest.mark.parametrize(
        ("index", "groups"),
        [
            ([0, 0, 1, 1, 2], None),
            ([2, 0, 0, 2, 0], None),
            ([3, 1, 1, 3, 1], 6),
            ([0, 0, 0, 0, 0], None),
            ([4, 3, 2, 1, 0], None),
        ],
        ids=["in order", "uneven, an empty group", "several empty", "one group", "alone"],
    )
    def test_sums_within_groups(
        self, case: Case, after_norms: bool, index: list[int], groups: int | None
    ) -> None:
        first, one = case.captured()
        if after_norms:
            first.norms()
        found = first.pool(torch.tensor(index), groups)
        count = groups or max(index) + 1
        assert found.records == count
        assert_is(
            found,
            {
                name: rows.new_zeros(count, *rows.shape[1:]).index_add(0, torch.tensor(index), rows)
                for name, rows in one.items()
            },
        )
        expected = torch.zeros(count).double().index_add(0, torch.tensor(index), first.losses)
        torch.testing.assert_close(found.losses, expected)

    def test_pools_can_be_combined_and_pooled_again(self, case: Case) -> None:
        (first, one), (second, two) = case.captured(), case.captured()
        index = torch.tensor([0, 1, 1, 0, 2])
        pooled = [part.pool(index) for part in (first, second)]
        again = combine(pooled, [1.0, 2.0]).pool(torch.tensor([0, 0, 1]))
        both = torch.tensor([0, 0, 0, 0, 1])
        assert_is(
            again,
            {
                name: one[name]
                .new_zeros(2, *one[name].shape[1:])
                .index_add(0, both, one[name] + 2 * two[name])
                for name in one
            },
        )

    def test_a_wrong_index_is_refused(self) -> None:
        first, _ = Case("mlp").captured()
        with pytest.raises(ValueError, match=r"one group per record.*\(5,\).*\(4,\)"):
            first.pool(torch.zeros(4, dtype=torch.long))

    @pytest.mark.parametrize("index", [[0, 1, 2, 3, 4], [-1, 0, 0, 0, 0]])
    def test_groups_that_do_not_exist_are_refused(self, index: list[int]) -> None:
        first, _ = Case("sequence").captured()
        with pytest.raises(ValueError, match="groups"):
            first.pool(torch.tensor(index), groups=3)


class TestSelect:
    @pytest.mark.parametrize("index", [[3, 0], [1, 1, 1, 4, 0, 2], [2], []])
    def test_any_order_and_repeats(self, case: Case, after_norms: bool, index: list[int]) -> None:
        first, one = case.captured()
        if after_norms:
            first.norms()
        chosen = torch.tensor(index, dtype=torch.long)
        found = first.select(chosen)
        assert_is(found, {name: rows[chosen] for name, rows in one.items()})
        assert torch.equal(found.losses, first.losses[chosen])


class TestSum:
    def test_a_weight_of_zero_takes_no_part(self, case: Case, after_norms: bool) -> None:
        inputs = case.batch(5)
        if not inputs.is_floating_point():
            pytest.skip("tokens cannot be infinite")
        inputs = inputs.double()
        inputs[1], inputs[3] = torch.nan, torch.inf
        model = case.model
        found = capture(model, output_losses, inputs)
        if after_norms:
            norms = found.norms()
            assert torch.isfinite(norms).tolist() == [True, False, True, False, True]
        weights = torch.tensor([1.0, 0.0, 0.5, 0.0, 2.0]).double()
        total = found.sum(weights)
        good = torch.tensor([0, 2, 4])
        expected = loop(model, inputs[good])
        for name, rows in expected.items():
            truth = torch.einsum("b,b...->...", weights[good], rows)
            torch.testing.assert_close(total[name], truth, rtol=1e-9, atol=1e-12)

    def test_only_zeros(self, case: Case) -> None:
        first, one = case.captured()
        for name, value in first.sum(torch.zeros(5)).items():
            assert value.shape == one[name].shape[1:]
            assert not value.any()

    def test_ones_by_default(self, case: Case) -> None:
        first, one = case.captured()
        for name, value in first.sum().items():
            torch.testing.assert_close(value, one[name].sum(0), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("shape", [(4,), (5, 1), ()])
    def test_wrong_weights_are_refused(self, shape: tuple[int, ...]) -> None:
        first, _ = Case("mlp").captured()
        weights = torch.ones(shape)
        with pytest.raises(ValueError, match=r"one weight per record.*\(5,\)"):
            first.sum(weights)


class TestNorms:
    def test_by_parameter(self, case: Case) -> None:
        first, one = case.captured()
        squares = first.square_norms()
        assert list(squares) == list(one)
        for name, rows in one.items():
            truth = rows.reshape(5, -1).square().sum(1)
            torch.testing.assert_close(squares[name], truth, rtol=1e-10, atol=1e-12)

    def test_asked_twice(self, case: Case) -> None:
        first, _ = case.captured()
        assert torch.equal(first.norms(), first.norms())

    def test_a_non_finite_record_is_not_finite(self, case: Case) -> None:
        inputs = case.batch(5)
        if not inputs.is_floating_point():
            pytest.skip("tokens cannot be infinite")
        inputs = inputs.double()
        inputs[2] = torch.nan
        norms = capture(case.model, output_losses, inputs).norms()
        assert torch.isfinite(norms).tolist() == [True, True, False, True, True]


class TestDot:
    def test_a_missing_name_counts_as_zero(self, case: Case) -> None:
        first, one = case.captured()
        name = first.names[0]
        value = torch.randn(one[name].shape[1:]).double()
        expected = (one[name] * value).reshape(5, -1).sum(1)
        torch.testing.assert_close(first.dot({name: value}), expected, rtol=1e-9, atol=1e-12)
        assert first.dot({}).tolist() == [0.0] * 5

    def test_an_unknown_name_is_refused(self) -> None:
        first, _ = Case("mlp").captured()
        with pytest.raises(KeyError, match=r"'nothing'.*not a captured.*0\.weight"):
            first.dot({"nothing": torch.zeros(3)})

    def test_a_wrong_shape_is_refused(self) -> None:
        for kind in MODELS:
            first, one = Case(kind).captured()
            for name, rows in one.items():
                for wrong in (torch.zeros(1, *rows.shape[1:]), torch.zeros(7)):
                    with pytest.raises(ValueError, match=rf"{name}.*shape"):
                        first.dot({name: wrong.double()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_in_a_long_run_are_the_same_numbers_by_compiled_loops(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 2))
    gradients = capture(model.to(dtype), output_losses, torch.randn(600, 30, dtype=dtype))
    weights = torch.rand(600, dtype=dtype)
    weights[:3] = 0
    assert gradients.term("2.weight").looped == 0
    short = gradients.total(weights)
    with run_of(2000):
        assert (gradients.term("2.weight").looped > 0) == (dtype == torch.float32)
        long = gradients.total(weights)
    for name, value in gradients.materialise().items():
        assert long[name].dtype == torch.float64
        torch.testing.assert_close(long[name], short[name], rtol=1e-12, atol=1e-13)
        dense = torch.einsum("b,b...->...", weights.double(), value.double())
        torch.testing.assert_close(short[name], dense, rtol=1e-5, atol=1e-6)
