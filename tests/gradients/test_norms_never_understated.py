"""Records built so that float32 sums cancel: no norm may be below the truth.

Every case has a loss that is linear in its model's outputs, so that what flows back is exactly the
coefficients chosen here, and the true gradient can be computed in float64. Whatever way the norm
takes, it must not be under-stated, and what is released of a record clipped by it stays within C.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn

from plumbline.gradients import PerSampleGradients, capture
from plumbline.gradients.outer import Outer
from plumbline.gradients.terms import Dense
from tests.gradients.harness import kernel, record_norms

Batch = tuple[Tensor, ...]
Losses = Callable[[nn.Module, Batch], Tensor]

RECORDS = 6
BOUND = 1.0
UNDERSTATED = 1e-6
RELEASED = 1e-5

LEFT = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
"""What the cancellation leaves, relative to the terms that cancel."""

cancelling = pytest.mark.parametrize("left", LEFT)
scales = pytest.mark.parametrize("scale", [1.0, 1e6, 1e-6], ids=["", "huge", "tiny"])


@pytest.fixture(autouse=True)
def _not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first capture's comparison with autograd is not the subject here.

    In a batch where every record's gradient cancels, two float32 gradients differ by rounding.
    """
    monkeypatch.setattr(
        "plumbline.gradients.checking.AutogradCheck.difference", lambda *args, **named: None
    )


def alternating(shape: tuple[int, ...], left: float) -> Tensor:
    """Signs that alternate along dimension 1, times rows that are nearly equal."""
    rows = torch.randn(shape[0], 1, *shape[2:]).expand(shape).clone()
    rows *= 1 + left * torch.randn(shape)
    rows[:, 1::2] *= -1
    return rows


def nearly_constant(shape: tuple[int, ...], left: float) -> Tensor:
    """Positive values that hardly differ along dimension 1."""
    rows = 1 + torch.rand(shape[0], 1, *shape[2:])
    return rows * (1 + left * torch.randn(shape))


def weighted(net: nn.Module, batch: Batch) -> Tensor:
    """The sum of the outputs, each times its coefficient."""
    inputs, coefficients = batch
    return (net(inputs) * coefficients).flatten(1).sum(1)


def truth(model: nn.Module, batch: Batch, losses: Losses) -> Tensor:
    """Each record's gradient norm, one at a time, in float64."""
    double = copy.deepcopy(model).double()
    batch = tuple(x.double() if x.is_floating_point() else x for x in batch)
    parameters = dict(double.named_parameters())
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for loss in losses(double, batch):
        gradients = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            rows[name].append(gradient)
    return record_norms({name: torch.stack(own) for name, own in rows.items()})


def assert_never_understated(
    model: nn.Module,
    batch: Batch,
    losses: Losses = weighted,
    *,
    exact: bool = True,
) -> PerSampleGradients:
    """Norms are at least the truth, and one clipped record's share stays within the bound.

    ``exact`` is False where float32 rounds before the gradient is a gradient (a bias's sum, a
    parametrisation): there only what is released counts.
    """
    true = truth(model, batch, losses)
    for again in (False, True):
        found = capture(model, losses, batch)
        norms = found.norms().double()
        assert bool(torch.isfinite(norms).all())
        if exact:
            low = (norms / true - 1).min().item()
            assert low >= -UNDERSTATED, f"under-stated by {-low:.1e}"
        for record in range(found.records):
            weights = torch.zeros(found.records)
            weights[record] = BOUND / norms[record]
            total = found.sum(weights)
            released = record_norms({name: value[None] for name, value in total.items()})
            assert released.item() <= BOUND * (1 + RELEASED), (
                f"record {record} was released with norm {released.item():.6f} "
                f"({'later' if again else 'first'} capture)"
            )
    return found


@contextmanager
def forced(*names: str) -> Iterator[None]:
    with kernel(*names) if names else nullcontext():
        yield


LINEAR = ["keep", "stream", "gram"]
compiled = pytest.mark.parametrize("_compiled", [False, True], ids=["", "compiled"], indirect=True)


@pytest.fixture
def _compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether compiled loops are offered for few numbers too."""
    if getattr(request, "param", True):
        monkeypatch.setattr("plumbline.gradients.layers.convolution._WORTH", 0)
        monkeypatch.setattr("plumbline.gradients.outer._WORTH", 0)


@compiled
@pytest.mark.usefixtures("_compiled")
@cancelling
@scales
@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str, scale: float, left: float) -> None:
    inputs = scale * nearly_constant((RECORDS, 64, 8), left)
    coefficients = alternating((RECORDS, 64, 6), left)
    model = nn.Linear(8, 6, bias=False)
    with forced(name):
        assert_never_understated(
            model,
            (inputs, coefficients),
        )


@compiled
@pytest.mark.usefixtures("_compiled")
@cancelling
@pytest.mark.parametrize("name", LINEAR)
def test_linear_with_many_positions(name: str, left: float) -> None:
    inputs = nearly_constant((3, 2048, 4), left)
    coefficients = alternating((3, 2048, 4), left)
    model = nn.Linear(4, 4, bias=False)
    with forced(name):
        assert_never_understated(
            model,
            (inputs, coefficients),
        )


@cancelling
@scales
def test_linear_with_bias(scale: float, left: float) -> None:
    inputs = scale * nearly_constant((RECORDS, 64, 8), left)
    coefficients = alternating((RECORDS, 64, 6), left)
    assert_never_understated(
        nn.Linear(8, 6),
        (inputs, coefficients),
        exact=False,
    )


@compiled
@pytest.mark.usefixtures("_compiled")
@cancelling
def test_one_record_that_cancels_among_ordinary_ones(left: float) -> None:
    inputs, coefficients = torch.randn(RECORDS, 64, 8), torch.randn(RECORDS, 64, 6)
    inputs[2] = 1e6 * nearly_constant((1, 64, 8), left)[0]
    coefficients[2] = alternating((1, 64, 6), left)[0]
    for name in LINEAR:
        with forced(name):
            assert_never_understated(
                nn.Linear(8, 6, bias=False),
                (inputs, coefficients),
            )


def rounded_upwards(positions: int, step: float, top: float) -> Tensor:
    """Products whose float32 running sum rounds upwards at every step.

    ``top`` first and ``-top`` last cancel. Each of the many small products between them is a little
    more than half of what float32 can add to ``top``, so a running sum adds too much each time.
    """
    products = torch.full((positions,), step * 2.0**-24)
    products[0], products[-1] = top, -top
    return products


UPWARDS = [(step, top) for step in (1.05, 1.25, 1.5) for top in (1.0, 1.25, 1.5, 1.75)]


@compiled
@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("positions", [64, 256, 512, 2048])
@pytest.mark.parametrize("width", [1, 6, 32])
def test_linear_sums_that_always_round_one_way(name: str, positions: int, width: int) -> None:
    batch = torch.stack([rounded_upwards(positions, *how) for how in UPWARDS])
    inputs = batch.abs().sqrt()[..., None].expand(-1, -1, width + 2).contiguous()
    coefficients = (batch.sign() * batch.abs().sqrt())[..., None].expand(-1, -1, width).contiguous()
    with forced(name):
        assert_never_understated(
            nn.Linear(width + 2, width, bias=False),
            (inputs, coefficients),
        )


@pytest.mark.parametrize("positions", [64, 256, 2048])
def test_embedding_sums_that_always_round_one_way(positions: int) -> None:
    batch = torch.stack([rounded_upwards(positions, *how) for how in UPWARDS])
    coefficients = batch[..., None].expand(-1, -1, 4).contiguous()
    tokens = torch.ones(len(UPWARDS), positions, dtype=torch.long)
    assert_never_understated(
        nn.Embedding(3, 4),
        (tokens, coefficients),
    )


CONVOLUTIONS = [
    (norm, dense) for norm in ("keep", "stream")
    for dense in ("compiled", "grouped", "unfold")
]  # fmt: skip


@pytest.mark.usefixtures("_compiled")
@cancelling
@scales
@pytest.mark.parametrize(("norm", "dense"), CONVOLUTIONS)
def test_convolution_2d(norm: str, dense: str, scale: float, left: float) -> None:
    inputs = nearly_constant((RECORDS, 20 * 20, 2), left).mT.reshape(RECORDS, 2, 20, 20)
    inputs = (scale * inputs).contiguous()
    coefficients = alternating((RECORDS, 18 * 18, 3), left).mT.reshape(RECORDS, 3, 18, 18)
    model = nn.Conv2d(2, 3, 3, bias=False)
    with forced(norm, dense):
        assert_never_understated(
            model,
            (inputs, coefficients),
        )


@pytest.mark.usefixtures("_compiled")
@cancelling
@pytest.mark.parametrize(("norm", "dense"), CONVOLUTIONS)
def test_convolution_1d(norm: str, dense: str, left: float) -> None:
    inputs = nearly_constant((RECORDS, 66, 2), left).mT.contiguous()
    coefficients = alternating((RECORDS, 64, 3), left).mT
    with forced(norm, dense):
        assert_never_understated(
            nn.Conv1d(2, 3, 3, bias=False),
            (inputs, coefficients),
        )


@cancelling
def test_depthwise_convolution(left: float) -> None:
    inputs = nearly_constant((RECORDS, 66, 3), left).mT.contiguous()
    coefficients = alternating((RECORDS, 64, 3), left).mT
    with forced("grouped"):
        assert_never_understated(
            nn.Conv1d(3, 3, 3, groups=3, bias=False),
            (inputs, coefficients),
        )


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize(("norm", "dense"), CONVOLUTIONS)
@pytest.mark.parametrize("positions", [64, 512])
def test_convolution_sums_that_always_round_one_way(norm: str, dense: str, positions: int) -> None:
    batch = torch.stack([rounded_upwards(positions, *how) for how in UPWARDS])[:, None]
    inputs = batch.abs().sqrt().expand(-1, 4, -1).contiguous()
    coefficients = (batch.sign() * batch.abs().sqrt()).expand(-1, 6, -1).contiguous()
    with forced(norm, dense):
        assert_never_understated(
            nn.Conv1d(4, 6, 1, bias=False),
            (inputs, coefficients),
        )


@cancelling
@scales
@pytest.mark.parametrize("length", [8, 256])
def test_embedding_of_one_repeated_token(length: int, scale: float, left: float) -> None:
    tokens = torch.arange(RECORDS)[:, None].expand(-1, length).contiguous()
    coefficients = scale * alternating((RECORDS, length, 4), left)
    assert_never_understated(
        nn.Embedding(RECORDS, 4),
        (tokens, coefficients),
    )


class Tied(nn.Module):
    """One matrix as an embedding and as a linear layer, whose gradients can cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, tokens: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.embedding(tokens, self.weight), F.linear(x, self.weight)


@cancelling
@scales
def test_tied_embedding_and_linear(scale: float, left: float) -> None:
    tokens = torch.tensor([[0], [1], [2], [3], [4], [0]])
    x = scale * torch.randn(RECORDS, 4)
    rows = torch.randn(RECORDS, 1)
    at_output = rows * F.one_hot(tokens[:, 0], 5)
    at_embedding = -(rows * x * (1 + left * torch.randn(RECORDS, 4)))[:, None]

    def losses(net: nn.Module, batch: Batch) -> Tensor:
        tokens, x, at_embedding, at_output = batch
        embedded, output = net(tokens, x)
        return (embedded * at_embedding).sum((1, 2)) + (output * at_output).sum(1)

    assert_never_understated(Tied(), (tokens, x, at_embedding, at_output), losses)


@cancelling
@scales
def test_a_linear_layer_used_twice(scale: float, left: float) -> None:
    x = scale * torch.randn(RECORDS, 8)
    y = x * (1 + left * torch.randn(RECORDS, 8))
    coefficients = torch.randn(RECORDS, 6)

    def losses(net: nn.Module, batch: Batch) -> Tensor:
        x, y, coefficients = batch
        return ((net(x) - net(y)) * coefficients).sum(1)

    assert_never_understated(nn.Linear(8, 6, bias=False), (x, y, coefficients), losses)


@cancelling
def test_a_linear_layer_used_as_a_convolution_too(left: float) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 2, 1))

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return F.conv1d(x, self.weight), F.conv1d(y, self.weight)

    x = nearly_constant((RECORDS, 64, 2), left).mT.contiguous()
    y = x * (1 + left * torch.randn(x.shape))
    coefficients = torch.randn(RECORDS, 3, 64)

    def losses(net: nn.Module, batch: Batch) -> Tensor:
        x, y, coefficients = batch
        one, two = net(x, y)
        return ((one - two) * coefficients).sum((1, 2))

    assert_never_understated(Shared(), (x, y, coefficients), losses, exact=False)


class Centre(nn.Module):
    """A parametrisation whose gradient cancels when the weight's gradient is nearly constant."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight - weight.flatten(1).mean(1).view(-1, *[1] * (weight.dim() - 1))


@cancelling
@scales
@pytest.mark.parametrize("positions", [1, 64])
def test_a_centred_weight(positions: int, scale: float, left: float) -> None:
    # Every input feature is nearly the same, so each row of the gradient is nearly constant.
    inputs = scale * nearly_constant((RECORDS, 8, positions), left).mT.contiguous()
    coefficients = torch.randn(RECORDS, positions, 6)
    model = nn.Linear(8, 6, bias=False)
    parametrize.register_parametrization(model, "weight", Centre())
    assert_never_understated(
        model,
        (inputs, coefficients),
        exact=False,
    )


@cancelling
def test_a_centred_convolution(left: float) -> None:
    inputs = nearly_constant((RECORDS, 2 * 20 * 20), left).view(RECORDS, 2, 20, 20)
    coefficients = torch.randn(RECORDS, 3, 18, 18)
    model = nn.Conv2d(2, 3, 3, bias=False)
    parametrize.register_parametrization(model, "weight", Centre())
    assert_never_understated(
        model,
        (inputs, coefficients),
        exact=False,
    )


class Layer(nn.Module):
    """A layer whose weight is centred, before one that is not."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(16, 2)
        parametrize.register_parametrization(layer, "weight", Centre())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(x).flatten(1)))


class CentredTwice(Layer):
    """The centred weight's original is used as it is, too: a sum of two kinds of terms."""

    def forward(self, x: Tensor) -> Tensor:
        original = self.layer.parametrizations.weight.original
        return super().forward(x) + self.head(torch.tanh(F.linear(1e-3 * torch.tanh(x), original)))


def _cross_entropy(net: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1], reduction="none")


HIDING = {
    "linear": (lambda: Layer(nn.Linear(27, 16, bias=False)), (27,)),
    "convolution": (lambda: Layer(nn.Conv2d(3, 16, 3, bias=False)), (3, 3, 3)),
    "two uses": (lambda: CentredTwice(nn.Linear(27, 16, bias=False)), (27,)),
}


@pytest.mark.parametrize("value", [1e4, 1e6, 3e7])
@pytest.mark.parametrize("kind", HIDING)
def test_a_record_that_a_parametrisation_hides_among_many(kind: str, value: float) -> None:
    # Its weight's gradient is constant, so its norm is small; but not in a sum that is centred
    # afterwards, where the others would be rounded at its size.
    make, shape = HIDING[kind]
    torch.manual_seed(0)
    model, x = make(), torch.randn(4001, *shape)
    x[0] = value
    labels = torch.arange(len(x)) % 2
    found = capture(model, _cross_entropy, (x, labels))
    clipped = (BOUND / found.norms()).clamp(max=1)
    others = clipped.index_fill(0, torch.tensor([0]), 0)
    together, without = found.sum(clipped), found.sum(others)
    moved = record_norms({name: (together[name] - without[name])[None] for name in together})
    assert moved.item() <= BOUND * (1 + 1e-3)


def test_only_the_hidden_record_is_kept() -> None:
    make, shape = HIDING["linear"]
    model, x = make(), torch.randn(100, *shape)
    x[0] = 1e6
    found = capture(model, lambda net, x: net(x).sum(1), x)
    name = "layer.parametrizations.weight.original"
    before = found.term(name).nbytes
    found.norms()
    assert found.term(name).nbytes == before + found.term(name).dense_nbytes // 100


@cancelling
def test_pooled_records_that_cancel_each_other(left: float) -> None:
    model = nn.Linear(8, 6, bias=False)
    x = torch.randn(RECORDS, 8).repeat_interleave(2, 0)
    x[1::2] *= 1 + left * torch.randn(RECORDS, 8)
    coefficients = torch.randn(RECORDS, 6).repeat_interleave(2, 0)
    coefficients[1::2] *= -1
    pooled = capture(model, weighted, (x, coefficients)).pool(
        torch.arange(RECORDS).repeat_interleave(2)
    )
    true = torch.einsum("bo,bi->boi", coefficients.double(), x.double())
    norms = pooled.norms().double()
    expected = record_norms({"weight": true.view(RECORDS, 2, 6, 8).sum(1)})
    assert bool((norms >= expected * (1 - UNDERSTATED)).all())
    for record in range(RECORDS):
        weights = torch.zeros(RECORDS)
        weights[record] = BOUND / norms[record]
        assert pooled.sum(weights)["weight"].double().norm() <= BOUND * (1 + RELEASED)


@cancelling
@pytest.mark.parametrize("name", LINEAR)
def test_combined_captures_that_cancel(name: str, left: float) -> None:
    model = nn.Linear(8, 6, bias=False)
    x = torch.randn(RECORDS, 40, 8)
    y = x * (1 + left * torch.randn(x.shape))
    coefficients = torch.randn(RECORDS, 40, 6)
    first, second = (capture(model, weighted, (batch, coefficients)) for batch in (x, y))
    with forced(name):
        both = PerSampleGradients.combine([first, second], [1.0, -1.0])
        norms = both.norms().double()
    true = torch.einsum("bto,bti->boi", coefficients.double(), x.double() - y.double())
    assert bool((norms >= record_norms({"weight": true}) * (1 - UNDERSTATED)).all())
    for record in range(RECORDS):
        weights = torch.zeros(RECORDS)
        weights[record] = BOUND / norms[record]
        assert both.sum(weights)["weight"].double().norm() <= BOUND * (1 + RELEASED)


@pytest.mark.parametrize("scale", [1e-16, 1e-19, 1e-21], ids=str)
@pytest.mark.parametrize("shape", [(RECORDS, 8), (RECORDS, 40, 8)], ids=["flat", "sequence"])
def test_gradients_whose_squares_underflow(shape: tuple[int, ...], scale: float) -> None:
    inputs = scale * torch.randn(shape)
    coefficients = torch.randn(*shape[:-1], 6)
    assert_never_understated(
        nn.Linear(8, 6, bias=False),
        (inputs, coefficients),
    )


def test_squares_that_vanish_in_float32() -> None:
    """Of a tiny factor beside a huge one: their product is larger than all else."""
    tiny, huge = torch.full((RECORDS, 1, 64), 2e-23), torch.full((RECORDS, 1, 64), 2e18)
    rest = torch.full((RECORDS, 1), 1e-3)
    terms = {"w": Outer(tiny, huge), "b": Dense(rest)}
    found = PerSampleGradients(terms, RECORDS, torch.zeros(RECORDS))
    product = tiny.double().transpose(1, 2) @ huge.double()
    true = record_norms({"w": product, "b": rest.double()})
    assert float((found.norms().double() / true).min()) >= 1 - UNDERSTATED


def test_a_record_taken_from_a_batch_has_the_same_norm() -> None:
    """The bound on the rounding of a bias's sum goes with it."""
    model = nn.Linear(8, 6)
    inputs, coefficients = torch.randn(RECORDS, 16, 8), alternating((RECORDS, 16, 6), 1e-3)
    beside = capture(model, weighted, (inputs, coefficients)).norms(["bias"])
    for record in range(RECORDS):
        found = capture(model, weighted, (inputs, coefficients))
        alone = found.select(torch.tensor([record])).norms(["bias"])
        torch.testing.assert_close(alone, beside[record : record + 1], rtol=1e-6, atol=0)
