from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.gradients import PerSampleGradients, capture, combine
from plumbline.gradients.compound import Mixed
from plumbline.gradients.layers.blocks import Stacked
from tests.gradients.harness import (
    PRECISIONS,
    Precision,
    assert_matches_loop,
    kernel,
    output_losses,
)

Split = Callable[[Tensor], tuple[Tensor, ...]]

SPLITS: dict[str, Split] = {
    "sizes": lambda packed: packed.split([2, 3, 4]),
    "torch.split": lambda packed: torch.split(packed, 3),
    "not even": lambda packed: packed.split(4),
    "chunk": lambda packed: packed.chunk(3),
    "torch.chunk": lambda packed: torch.chunk(packed, 2, 0),
    "one": lambda packed: packed.split(9),
}


class Packed(nn.Module):
    """Several linear layers, each on another function of the input, in one parameter."""

    def __init__(self, split: Split, used: slice = slice(None)) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, 4))
        self.bias = nn.Parameter(torch.randn(9))
        self.split, self.used = split, used

    def forward(self, x: Tensor) -> Tensor:
        parts = list(zip(self.split(self.weight), self.split(self.bias), strict=True))
        outputs = [
            F.linear(torch.sin((place + 1) * x), weight, bias)
            for place, (weight, bias) in enumerate(parts[self.used])
        ]
        return torch.cat(outputs, -1)


def _captured(x: Tensor, model: nn.Module) -> PerSampleGradients:
    return capture(model, output_losses, x)


@PRECISIONS
@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (3, 3, 4)], ids=str)
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS.keys())
def test_splits(split: Split, shape: tuple[int, ...], precision: Precision) -> None:
    assert_matches_loop(Packed(split), torch.randn(shape), **precision)


@PRECISIONS
@pytest.mark.parametrize("name", ["keep", "stream", "gram"])
def test_every_kernel(name: str, precision: Precision) -> None:
    with kernel(name):
        assert_matches_loop(Packed(SPLITS["sizes"]), torch.randn(5, 2, 4), **precision)


def test_rows_that_are_not_used_have_no_gradient() -> None:
    model = Packed(SPLITS["chunk"], used=slice(1, 2))
    found = assert_matches_loop(model, torch.randn(5, 3, 4)).materialise()["weight"]
    assert not found[:, :3].any()
    assert not found[:, 6:].any()


def test_a_block_keeps_its_layers_term() -> None:
    found = _captured(torch.randn(5, 3, 4), Packed(SPLITS["sizes"]))
    term = found.term("weight")
    assert isinstance(term, Stacked)
    assert list(term.blocks) == [(0, 2), (2, 5), (5, 9)]


@PRECISIONS
def test_one_parameter_split_in_two_ways(precision: Precision) -> None:
    class Twice(Packed):
        def forward(self, x: Tensor) -> Tensor:
            first = super().forward(x)
            self.split = SPLITS["torch.split"]
            second = super().forward(torch.tanh(x))
            self.split = SPLITS["sizes"]
            return torch.cat([first, second], -1)

    model = Twice(SPLITS["sizes"])
    assert isinstance(_captured(torch.randn(5, 3, 4), model).term("weight"), Mixed)
    assert_matches_loop(model, torch.randn(5, 3, 4), **precision)


@PRECISIONS
def test_a_split_along_another_dimension(precision: Precision) -> None:
    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8))

        def forward(self, x: Tensor) -> Tensor:
            left, right = self.weight.chunk(2, dim=1)
            return F.linear(torch.tanh(F.linear(x, left)), right)

    assert_matches_loop(Columns(), torch.randn(3, 5, 4), **precision)


@PRECISIONS
def test_blocks_of_a_parametrised_weight(precision: Precision) -> None:
    model = Packed(SPLITS["chunk"])
    nn.utils.parametrizations.weight_norm(model, "weight")
    assert_matches_loop(model, torch.randn(3, 5, 4), **precision)


def test_select_pool_and_combine() -> None:
    model = Packed(SPLITS["sizes"]).double()
    one, two = (_captured(torch.randn(5, 3, 4).double(), model) for _ in range(2))
    index = torch.tensor([1, 0, 1, 1, 0])
    factors = torch.rand(5).double()

    for name, rows in one.materialise().items():
        others = two.materialise()[name]
        pooled = torch.zeros(2, *rows.shape[1:]).double().index_add_(0, index, rows)
        shaped = factors.reshape(-1, *(1,) * (rows.dim() - 1))
        for found, expected in [
            (one.select(index), rows[index]),
            (one.pool(index), pooled),
            (combine([one, two], [2.0, factors]), 2 * rows + shaped * others),
        ]:
            assert isinstance(found.term(name), Stacked)
            torch.testing.assert_close(found.materialise()[name], expected)


def test_records_built_to_cancel_are_not_understated() -> None:
    model = Packed(SPLITS["chunk"])
    x = (1 + 1e-4 * torch.randn(4, 64, 4)).float()
    signs = torch.ones(64).index_fill_(0, torch.arange(1, 64, 2), -1.0)

    found = capture(model, lambda net, x: (1e3 * signs[:, None] * net(x)).sum((1, 2)), x)

    norms = found.norms().double()
    own = torch.cat([v.double().flatten(1) for v in found.materialise().values()], 1).norm(dim=1)
    assert bool((norms >= own * (1 - 1e-6)).all())
