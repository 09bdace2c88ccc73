import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.gradients.harness import AUTOCAST, PRECISIONS, Precision, assert_matches_loop, kernel

RANKS = {
    "two dimensions": (5, 4),
    "three": (5, 7, 4),
    "four": (5, 3, 2, 4),
    "one position": (5, 1, 4),
    "one record": (1, 7, 4),
    "many positions": (3, 40, 4),
    "as many positions as records": (6, 6, 4),
}


@PRECISIONS
@pytest.mark.parametrize("shape", RANKS.values(), ids=RANKS.keys())
def test_inputs_of_any_rank(shape: tuple[int, ...], precision: Precision) -> None:
    assert_matches_loop(nn.Linear(4, 3), torch.randn(shape), **precision)


@given(
    records=st.integers(1, 5),
    middle=st.lists(st.integers(1, 4), max_size=2),
    into=st.integers(1, 6),
    out=st.integers(1, 6),
    bias=st.booleans(),
)
def test_any_shape(records: int, middle: list[int], into: int, out: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(into, out, bias=bias), nn.Tanh(), nn.Linear(out, 2))
    assert_matches_loop(model, torch.randn(records, *middle, into))


def test_arguments_by_their_names_in_torch() -> None:
    class Named(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return nn.functional.linear(input=input, weight=self.weight, bias=self.bias)

    assert_matches_loop(Named(4, 3), torch.randn(5, 4))


@PRECISIONS
def test_without_bias(precision: Precision) -> None:
    assert_matches_loop(nn.Linear(4, 3, bias=False), torch.randn(5, 7, 4), **precision)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("shape", [(5, 4), (5, 7, 4)], ids=["flat", "sequence"])
def test_a_frozen_parameter_is_left_out(frozen: str, shape: tuple[int, ...]) -> None:
    model = nn.Linear(4, 3)
    getattr(model, frozen).requires_grad_(False)
    found = assert_matches_loop(model, torch.randn(shape))
    assert found.names == [{"weight": "bias", "bias": "weight"}[frozen]]


@pytest.mark.parametrize("name", ["keep", "stream", "gram"])
@PRECISIONS
def test_every_norm_kernel(name: str, precision: Precision) -> None:
    with kernel(name):
        assert_matches_loop(nn.Linear(4, 3), torch.randn(5, 20, 4), **precision)


@pytest.mark.parametrize("name", ["stream", "gram"])
@pytest.mark.parametrize("positions", [2, 7, 20, 70])
@PRECISIONS
def test_compiled_loops(
    name: str, positions: int, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline.gradients.outer._WORTH", 0)
    with kernel(name):
        assert_matches_loop(nn.Linear(9, 6), torch.randn(5, positions, 9), **precision)


@pytest.mark.parametrize("name", ["library", "compiled"])
def test_every_kernel_for_sums_of_rank_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.gradients.outer._WORTH_ONE", 0)
    with kernel(name):
        assert_matches_loop(nn.Linear(9, 14), torch.randn(5, 9), dtype=torch.float32)


@PRECISIONS
@pytest.mark.parametrize("shape", [(7, 5, 4), (3, 5, 4), (7, 5, 2, 4)])
def test_sequence_first(shape: tuple[int, ...], precision: Precision) -> None:
    assert_matches_loop(nn.Linear(4, 3), torch.randn(shape), batch_dim=1, **precision)


@PRECISIONS
@pytest.mark.parametrize("positions", [2, 30], ids=["as low-rank offsets", "as moved weights"])
def test_every_records_own_weights(positions: int, precision: Precision) -> None:
    model = nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 8))
    assert_matches_loop(model, torch.randn(4, positions, 8), **precision)


def test_records_and_positions_in_one_dimension() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            tokens = torch.tanh(self.first(x)).flatten(0, 1)
            return self.second(tokens).view(len(x), -1, 3)

    assert_matches_loop(Flattened(), torch.randn(5, 7, 4))


def test_under_autocast() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    assert_matches_loop(model, torch.randn(5, 6, 16), **AUTOCAST)


def test_an_input_of_integers_made_floats() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.to(self.linear.weight.dtype))

    assert_matches_loop(Counts(), torch.randint(0, 9, (5, 4)))
