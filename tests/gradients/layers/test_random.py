"""Random functions inside a model: a record's numbers depend on the record and the key alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.gradients import Perturbation, UnsupportedModelError, capture
from plumbline.gradients.layers.random import _RANDOM
from plumbline.record_random import Draws
from tests.gradients.devices import seeded
from tests.gradients.harness import record_losses

NUMBERS = torch.tensor([7, 3, 11, 0, 5])

USES: dict[Any, Callable[[Tensor], Any]] = {
    F.dropout: lambda x: F.dropout(x, 0.4),
    torch.dropout: lambda x: torch.dropout(x, 0.4, True),
    F.dropout1d: lambda x: F.dropout1d(x, 0.4),
    F.dropout2d: lambda x: F.dropout2d(x[..., None], 0.4),
    F.dropout3d: lambda x: F.dropout3d(x[..., None, None], 0.4),
    torch.rand: lambda x: torch.rand(x.shape),
    torch.rand_like: torch.rand_like,
    torch.randn: lambda x: torch.randn(1, 3),
    torch.randn_like: torch.randn_like,
    torch.randint: lambda x: torch.randint(0, 100, (1, 3)),
    torch.randint_like: lambda x: torch.randint_like(x, 100),
    torch.randperm: lambda x: torch.randperm(12),
    torch.normal: lambda x: torch.normal(x, 1.0),
    torch.bernoulli: lambda x: torch.bernoulli(x.sigmoid()),
    torch.multinomial: lambda x: torch.multinomial(x[0, 0].softmax(0), 3),
    torch.poisson: lambda x: torch.poisson(5 + x.abs()),
    torch.rrelu: lambda x: torch.rrelu(-x.abs(), training=True),
    torch.binomial: lambda x: torch.binomial(torch.full_like(x, 20), x.sigmoid()),
    F.rrelu: lambda x: F.rrelu(-x.abs(), training=True),
    F.gumbel_softmax: F.gumbel_softmax,
    F.alpha_dropout: lambda x: F.alpha_dropout(x, 0.4, training=True),
    F.feature_alpha_dropout: lambda x: F.feature_alpha_dropout(x, 0.4, training=True),
    F.fractional_max_pool2d: lambda x: F.fractional_max_pool2d(_large(x), 2, output_size=(5, 5)),
    F.fractional_max_pool3d: lambda x: F.fractional_max_pool3d(
        _large(x)[:, None, None].expand(-1, 1, 6, -1, -1), 2, output_size=(3, 4, 4)
    ),
    torch.alpha_dropout: lambda x: torch.alpha_dropout(x, 0.4, True),
    torch.feature_dropout: lambda x: torch.feature_dropout(x, 0.4, True),
    torch.feature_alpha_dropout: lambda x: torch.feature_alpha_dropout(x, 0.4, True),
    Tensor.bernoulli: lambda x: x.sigmoid().bernoulli(),
    Tensor.multinomial: lambda x: x[0, 0].softmax(0).multinomial(3),
    Tensor.bernoulli_: lambda x: x.clone().bernoulli_(0.4),
    Tensor.normal_: lambda x: x.clone().normal_(),
    Tensor.uniform_: lambda x: x.clone().uniform_(),
    Tensor.exponential_: lambda x: x.clone().exponential_(),
    Tensor.random_: lambda x: x.clone().random_(0, 1000),
    Tensor.log_normal_: lambda x: x.clone().log_normal_(),
    Tensor.geometric_: lambda x: x.clone().geometric_(0.1),
    Tensor.cauchy_: lambda x: x.clone().cauchy_().clamp(-9, 9),
}


def _large(x: Tensor) -> Tensor:
    """Distinct numbers in an image that is larger than its pooling."""
    return x.repeat(1, 2, 4) + torch.arange(12.0) / 100 + torch.arange(8.0)[:, None]


EVERY_USE = pytest.mark.parametrize(
    "use", USES.values(), ids=[f"{f.__name__}-{n}" for n, f in enumerate(USES)]
)


class Random(nn.Module):
    def __init__(self, use: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.use = nn.Linear(3, 3), use

    def forward(self, x: Tensor) -> Tensor:
        drawn = self.use(x)
        drawn = (drawn if isinstance(drawn, Tensor) else drawn[0]).float().flatten()
        weights = torch.cos(torch.arange(len(drawn)) * 1.7 + 1)
        return self.linear(x) * (1 + torch.tanh((weights * drawn).mean()))


def inputs() -> Tensor:
    return torch.randn(5, 4, 3, generator=seeded(4))


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return record_losses(model(x))


def of(model: nn.Module, x: Tensor, numbers: Tensor, key: str = "key", **named: Any) -> Tensor:
    return capture(model, losses, x, random=Draws(numbers, key), **named).losses


def test_every_random_function_is_tried() -> None:
    assert set(_RANDOM) <= set(USES)


@pytest.mark.parametrize("isolation", ["vmap", "loop"])
@EVERY_USE
def test_a_records_numbers_are_its_own(use: Callable[[Tensor], Any], isolation: Any) -> None:
    model, x = Random(use), inputs()
    found = of(model, x, NUMBERS, isolation=isolation)
    for other in (
        of(model, x, NUMBERS, isolation=isolation),
        of(model, x.flip(0), NUMBERS.flip(0), isolation=isolation).flip(0),
        torch.cat(
            [of(model, x[i : i + 1], NUMBERS[i : i + 1], isolation=isolation) for i in range(5)]
        ),
        of(model, torch.cat([x, x]), torch.cat([NUMBERS, NUMBERS + 50]), isolation=isolation)[:5],
    ):
        torch.testing.assert_close(other, found, rtol=1e-5, atol=1e-6)
    torch.manual_seed(99)
    assert torch.equal(of(model, x, NUMBERS, isolation=isolation), found)
    changed = of(model, x, NUMBERS, "another key", isolation=isolation)
    assert not torch.allclose(changed, found)


@EVERY_USE
def test_equal_records_draw_different_numbers(use: Callable[[Tensor], Any]) -> None:
    found = of(Random(use), inputs()[:1].expand(5, 4, 3), NUMBERS)
    assert len(found.unique()) > 1


def test_both_passes_of_a_perturbation_draw_the_same() -> None:
    model = nn.Sequential(nn.Linear(3, 400), nn.Dropout(0.5), nn.Linear(400, 2), nn.Dropout(0.2))
    x = inputs()
    first = capture(model, losses, x, random=Draws(NUMBERS, "step"))
    again = capture(model, losses, x, at=Perturbation(first, 0.0), random=Draws(NUMBERS, "step"))
    torch.testing.assert_close(again.losses, first.losses)


@pytest.mark.parametrize("isolation", ["vmap", "loop"])
def test_recurrent_and_attention_dropout(isolation: Any) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)
            self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(self.recurrent(x)[0])

    model, x = Both(), inputs()
    found = of(model, x, NUMBERS, isolation=isolation)
    alone = [of(model, x[i : i + 1], NUMBERS[i : i + 1], isolation=isolation) for i in range(5)]
    torch.testing.assert_close(torch.cat(alone), found, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(of(model, x, NUMBERS, "another", isolation=isolation), found)


@pytest.mark.parametrize("size", [3, 100, 3000])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_as_many_as_it_says(size: int, p: float) -> None:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    records = 60_000 // size

    def mean(net: nn.Module, x: Tensor) -> Tensor:
        kept = F.dropout(torch.ones(1, size, dtype=torch.float64) * x, p)
        exact = (kept == 0) | (kept == 1 / (1 - p))
        return net((kept != 0).double().mean(1, keepdim=True) + 10 * (~exact).sum())[:, 0]

    found = capture(model, mean, torch.ones(records, 1).double()).losses
    deviation = (p * (1 - p) / (records * size)) ** 0.5
    assert abs(float(found.mean()) - (1 - p)) <= 5 * deviation


@pytest.mark.parametrize(
    "step",
    [
        lambda x: torch._standard_gamma(x.abs()),
        lambda x: torch.rand(3, generator=torch.Generator()),
        lambda x: torch.ops.aten.rand([3]),
        lambda x: nn.init.normal_(torch.empty(3)),
    ],
    ids=["gamma", "own generator", "operator", "initialisation"],
)
def test_an_unknown_random_function_is_refused(step: Callable[[Tensor], Tensor]) -> None:
    message = r"test_random\.py.*draws random numbers.*torch\.randn_like.*isolation=\"loop\""
    with pytest.raises(UnsupportedModelError, match=message):
        capture(Random(step), losses, inputs())


def test_filling_what_all_records_share_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"same for all records.*randn_like"):
        capture(Random(lambda x: torch.empty(3).normal_()), losses, inputs())
