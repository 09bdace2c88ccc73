import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.gradients import capture
from tests.gradients.harness import (
    AUTOCAST,
    PRECISIONS,
    Precision,
    assert_matches_loop,
    record_losses,
    record_norms,
)


class WithWeight(nn.Module):
    """A raw matrix and a raw vector, for the forms below to use.

    Small enough that no tanh saturates: there bfloat16 has no digits left, in the loop either.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4) / 2)
        self.bias = nn.Parameter(torch.randn(3) / 2)


class Functional(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Einsum(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight) + self.bias


class Product(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class ProductOfTranspose(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight.t()).add(self.bias)


class FromTheLeft(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.mT).mT * self.bias


class MadeInForward(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / self.weight.norm(dim=1, keepdim=True)
        return F.linear(x, weight, self.bias.tanh())


class MadeFromTwo(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.bias[:, None])


class Sliced(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x[..., :2], self.weight[:, 2:], self.bias) + F.linear(
            x[..., 2:], self.weight[:, :2]
        )


class Stacked(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, torch.cat([self.weight, 2 * self.weight.flip(0)]))


class Chunked(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.weight.chunk(3)
        return F.linear(x, first) * F.linear(x, second) + F.linear(x, third)


class InPlaceBias(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        y += self.bias
        return torch.tanh(y)


class InPlaceMethod(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, self.weight).mul_(self.bias).add_(self.bias))


class Reversed(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return 1 - self.bias * F.linear(x, self.weight) / (1 + self.bias.square())


class Where(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        return torch.where(y > 0, y, self.bias * y)


class Distances(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, self.weight.expand(*x.shape[:-2], 3, 4)).square() + self.bias


class Gated(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.bias.sum()) * F.linear(x, self.weight)


class Addmm(WithWeight):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.reshape(-1, 4), self.weight.t())
        return rows.view(*x.shape[:-1], 3)


FORMS = [
    Functional, Einsum, Product, ProductOfTranspose, FromTheLeft, MadeInForward, MadeFromTwo,
    Sliced, Stacked, Chunked, InPlaceBias, InPlaceMethod, Reversed, Where, Distances, Gated, Addmm,
]  # fmt: skip


@PRECISIONS
@pytest.mark.parametrize("kind", FORMS)
def test_raw_parameters(kind: type[nn.Module], precision: Precision) -> None:
    assert_matches_loop(kind(), torch.randn(5, 6, 4), **precision)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("records", [1, 6], ids=["one record", "records equal positions"])
def test_raw_parameters_of_ambiguous_batches(kind: type[nn.Module], records: int) -> None:
    assert_matches_loop(kind(), torch.randn(records, 6, 4))


@PRECISIONS
@pytest.mark.parametrize("kind", [kind for kind in FORMS if kind not in (FromTheLeft, Distances)])
def test_raw_parameters_without_positions(kind: type[nn.Module], precision: Precision) -> None:
    assert_matches_loop(kind(), torch.randn(5, 4), **precision)


@pytest.mark.parametrize("positions", [1, 6])
@pytest.mark.parametrize("added", [False, True], ids=["alone", "added to another"])
def test_a_weight_made_in_bfloat16(added: bool, positions: int) -> None:
    """What the norms measure is what a sum adds up, however coarsely the weight was made."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))
            self.register_buffer("fixed", torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            product = self.left @ self.right
            return F.linear(x, self.fixed + product if added else product)

    model, x = Product(), torch.randn(8, positions, 4)
    assert_matches_loop(model, x, **AUTOCAST)

    def losses(net: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return record_losses(net(x))

    for _ in range(2):
        found = capture(model, losses, x)
        dense, weights = found.materialise(), 1 / found.norms()
        assert weights.dtype == torch.float32
        torch.testing.assert_close(1 / weights, record_norms(dense).float(), rtol=1e-5, atol=0)
        for name, total in found.sum(weights).items():
            expected = torch.einsum("b,b...->...", weights, dense[name])
            torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-5)


class Tokens(nn.Module):
    """What a vision transformer adds to its patches, and a layer scale behind."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 7, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return tokens + self.scale * self.linear(tokens)


@PRECISIONS
@pytest.mark.parametrize("records", [5, 1, 6, 7], ids=["", "one", "as patches", "as tokens"])
def test_class_token_positions_and_layer_scale(records: int, precision: Precision) -> None:
    assert_matches_loop(Tokens(), torch.randn(records, 6, 4), **precision)


def test_class_token_when_a_later_batch_is_as_long_as_the_sequence() -> None:
    model = Tokens()
    for records in (3, 7, 6, 1):
        assert_matches_loop(model, torch.randn(records, 6, 4))


@PRECISIONS
@pytest.mark.parametrize("channels", [1, 4], ids=["one slope", "a slope per channel"])
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (5, 4, 3, 3)])
def test_prelu(channels: int, shape: tuple[int, ...], precision: Precision) -> None:
    def losses(model: nn.Module, x: Tensor) -> Tensor:
        # A slope's gradient is then a sum of one sign: one that cancels is rounding in bfloat16.
        return model(x).float().flatten(1).square().mean(1)

    model, x = nn.PReLU(channels), torch.randn(shape)
    if precision is AUTOCAST:
        assert_matches_loop(model, x, losses=losses, **precision)
    else:
        assert_matches_loop(model, x, **precision)


def test_a_scalar_parameter() -> None:
    class Temperature(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(0.7))

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x / self.temperature.exp(), dim=-1)

    assert_matches_loop(Temperature(), torch.randn(5, 4))


def test_a_learned_query_through_a_layer() -> None:
    class Pool(nn.Module):
        """The query meets the projection before it meets any record."""

        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.randn(2, 4))
            self.project = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.project(x) @ torch.tanh(self.project(self.query)).T
            return torch.softmax(scores, dim=1).mT @ x

    assert_matches_loop(Pool(), torch.randn(5, 6, 4))


def test_a_constant_through_a_layer() -> None:
    class Coordinates(nn.Module):
        """Features of a fixed grid, the same for every record."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("grid", torch.linspace(-1, 1, 6)[:, None])
            self.features = nn.Linear(1, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sin(self.features(self.grid))

    for records in (5, 6):
        assert_matches_loop(Coordinates(), torch.randn(records, 6, 4))


def test_a_mixture_of_two_weights_chosen_by_the_record() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.Parameter(torch.randn(2, 3, 4))

        def forward(self, x: Tensor) -> Tensor:
            gate = torch.softmax(x[:, :2], dim=1)
            weight = torch.einsum("be,eoi->boi", gate, self.experts)
            return torch.einsum("boi,bi->bo", weight, x)

    assert_matches_loop(Mixture(), torch.randn(5, 4))


def test_rows_of_a_parameter_chosen_by_the_record() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(6, 4))

        def forward(self, index: Tensor) -> Tensor:
            return torch.tanh(self.table[index])

    assert_matches_loop(Chosen(), torch.tensor([[0, 1], [2, 2], [5, 0]]))


class Unvmappable(nn.Module):
    """Chooses slopes by a mask of the record's, which vmap refuses: their number may differ."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2] * self.slope[x[0] > x[0].sort().values[1]]


def test_what_vmap_cannot_do_runs_record_by_record_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plumbline.gradients.layers.general._LOOPED", set())
    model = nn.Sequential(nn.Linear(4, 4), Unvmappable())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_matches_loop(model, torch.randn(5, 4))
        assert_matches_loop(model, torch.randn(3, 4))
    assert len(caught) == 1
    assert "'1.slope'" in str(caught[0].message)
    assert "record by record" in str(caught[0].message)


def test_a_parameter_that_averages_the_batch_averages_one_record() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1))
            self.end = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.end(x - torch.einsum("b,bi->i", self.weight, x))

    assert_matches_loop(Mean(), torch.randn(5, 4))
