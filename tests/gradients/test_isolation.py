"""Models and losses that mix records are refused by name; those that do not, pass; no trace."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plumbline.gradients.isolation import check_isolation
from torch import Tensor, nn

from plumbline.gradients import capture
from plumbline.gradients.errors import CaptureError, RecordsMixError
from tests.gradients.devices import seeded

Build = Callable[[], nn.Module]
Losses = Callable[[Any], Tensor]


def images(records: int = 6) -> tuple[Tensor, Tensor]:
    x = torch.randn(records, 3, 8, 8, generator=seeded(3))
    return x, torch.arange(records) % 2


def cross_entropy(model: nn.Module) -> Losses:
    return lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def network(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), *middle, nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(2)
    )


def ready(model: nn.Module) -> nn.Module:
    model.eval()
    with torch.no_grad():
        model(images()[0])
    return model.train()


class Centred(nn.Module):
    """Subtracts the batch's mean in its own code, between two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
        self.head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x - x.mean(0)
        return self.head(x)


class CentredInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Centred()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        pytest.param(
            lambda: network(nn.BatchNorm2d(4)),
            r"'running_mean' of the module '1' \(BatchNorm2d\)",
            id="bn",
        ),
        pytest.param(
            lambda: network(nn.BatchNorm2d(4, affine=False)),
            r"'1' \(BatchNorm2d\)",
            id="bn-without-affine",
        ),
        pytest.param(
            lambda: network(nn.BatchNorm2d(4).requires_grad_(False)),
            r"'1' \(BatchNorm2d\)",
            id="bn-frozen",
        ),
        pytest.param(
            lambda: network(nn.BatchNorm2d(4, track_running_stats=False)),
            r"first mix in the module '1' \(BatchNorm2d\)",
            id="bn-without-running-statistics",
        ),
        pytest.param(
            lambda: network(nn.BatchNorm2d(4, affine=False, track_running_stats=False)),
            r"first mix in the module '1' \(BatchNorm2d\)",
            id="bn-without-anything",
        ),
        pytest.param(
            lambda: network(nn.InstanceNorm2d(4, track_running_stats=True)),
            r"'running_mean' of the module '1' \(InstanceNorm2d\)",
            id="instance-norm-with-running-statistics",
        ),
        pytest.param(
            Centred,
            r"the code of the model itself \(Centred\), before its module 'head.0'",
            id="minus-the-mean",
        ),
        pytest.param(
            CentredInside,
            r"the code of the module 'body' \(Centred\), before its module 'body.head.0'",
            id="minus-the-mean-inside",
        ),
    ],
)
def test_a_model_that_mixes_records_is_refused_by_name(build: Build, message: str) -> None:
    model = ready(build())
    with pytest.raises(RecordsMixError, match=message) as caught:
        check_isolation(model, cross_entropy(model), images())
    assert "suggest_fixes" in str(caught.value)
    assert "its own output and target" not in str(caught.value)


def flat_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))


def centred_loss(model: nn.Module) -> Losses:
    def losses(batch: Any) -> Tensor:
        values = cross_entropy(model)(batch)
        return values - values.mean()

    return losses


def contrastive_loss(model: nn.Module) -> Losses:
    def losses(batch: Any) -> Tensor:
        z = nn.functional.normalize(model(batch[0]), dim=1)
        return nn.functional.cross_entropy(z @ z.T, torch.arange(len(z)), reduction="none")

    return losses


@pytest.mark.parametrize("loss", [centred_loss, contrastive_loss])
def test_a_loss_that_mixes_records_is_refused(loss: Callable[[nn.Module], Losses]) -> None:
    model = flat_model()
    with pytest.raises(RecordsMixError, match="mix in the loss function, or code outside"):
        check_isolation(model, loss(model), images())


def test_mixing_before_the_model_is_the_loss_functions() -> None:
    model = flat_model()

    def losses(batch: Any) -> Tensor:
        return cross_entropy(model)((batch[0] - batch[0].mean(0), batch[1]))

    with pytest.raises(RecordsMixError, match="mix in the loss function, before it calls"):
        check_isolation(model, losses, images())


def test_a_layer_used_twice_is_compared_call_by_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Flatten()
            self.linear = nn.Linear(192, 192)
            self.norm = nn.BatchNorm1d(192, track_running_stats=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.norm(self.linear(self.flat(x))))

    model = Twice()
    with pytest.raises(RecordsMixError, match=r"in the module 'norm' \(BatchNorm1d\)"):
        check_isolation(model, cross_entropy(model), images())


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))


def tokens(records: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randint(20, (records, 7), generator=seeded(5)), torch.arange(records) % 2


@pytest.mark.parametrize(
    ("build", "given"),
    [
        pytest.param(lambda: network(nn.Dropout(0.5)), images, id="dropout"),
        pytest.param(lambda: network(nn.GroupNorm(2, 4)), images, id="group-norm"),
        pytest.param(lambda: network(nn.LayerNorm([4, 6, 6])), images, id="layer-norm"),
        pytest.param(lambda: network(nn.InstanceNorm2d(4)), images, id="instance-norm"),
        pytest.param(lambda: network(nn.BatchNorm2d(4).eval()), images, id="bn-in-evaluation"),
        pytest.param(Transformer, tokens, id="transformer"),
        pytest.param(lambda: network(nn.GroupNorm(2, 4)), lambda: images(1), id="one-record"),
    ],
)
def test_a_model_that_keeps_records_apart_passes(
    build: Build, given: Callable[[], tuple[Tensor, Tensor]]
) -> None:
    model, batch = build(), given()
    modes = [module.training for module in model.modules()]
    with torch.no_grad():
        model.eval()(batch[0])
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    assert check_isolation(model, cross_entropy(model), batch)


def test_named_tensors_in_any_nesting() -> None:
    model = nn.BatchNorm1d(3, track_running_stats=False)
    batch = {"a": [torch.randn(4, 3)], "name": "kept"}
    with pytest.raises(RecordsMixError, match="mix in the model itself"):
        check_isolation(model, lambda b: model(b["a"][0]).square().sum(1), batch)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_bad_numbers_in_the_data_do_not_hide_mixing(bad: float) -> None:
    model = ready(network(nn.BatchNorm2d(4, track_running_stats=False)))
    x, y = images()
    x[0, 0, 0, 0] = bad
    with pytest.raises(RecordsMixError, match="BatchNorm2d"):
        check_isolation(model, cross_entropy(model), (x, y))


def test_records_that_are_all_alike_cannot_tell() -> None:
    class Mixing(Transformer):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.embedding(x).mean((0, 1)).sum()

    model = Mixing()
    x, y = tokens()
    alike = x[:1].expand(6, -1), y[:1].expand(6)
    assert not check_isolation(model, cross_entropy(model), alike)
    # The one that differs is found wherever it is.
    late = torch.cat([alike[0], x[3:4]]), torch.cat([alike[1], y[3:4]])
    with pytest.raises(RecordsMixError):
        check_isolation(model, cross_entropy(model), late)


def test_a_batch_without_tensors_is_refused() -> None:
    with pytest.raises(CaptureError, match="of type object, has no tensors"):
        check_isolation(flat_model(), lambda batch: torch.zeros(2), object())


def next_numbers() -> Tensor:
    """What the device's generator draws next, as long as nobody else draws."""
    torch.manual_seed(1)
    numbers = torch.rand(3)
    torch.manual_seed(1)
    return numbers


@pytest.mark.parametrize(
    "build", [lambda: nn.BatchNorm2d(4), lambda: nn.GroupNorm(2, 4)], ids=["bn", "gn"]
)
def test_the_check_leaves_no_trace(build: Build) -> None:
    norm = build()
    model = ready(network(norm, nn.Dropout(0.5)))
    batch = images()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    data = [leaf.clone() for leaf in batch]
    expected = next_numbers()
    try:
        check_isolation(model, cross_entropy(model), batch)
    except RecordsMixError:
        assert isinstance(norm, nn.BatchNorm2d)
    assert torch.equal(torch.rand(3), expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    for leaf, before in zip(batch, data, strict=True):
        assert torch.equal(leaf, before)
    assert all(p.grad is None for p in model.parameters())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_hooks_and_random_state_are_put_back_when_the_model_fails() -> None:
    model = flat_model()
    expected = next_numbers()
    with pytest.raises(RuntimeError, match="mat1"):
        check_isolation(model, lambda b: torch.rand(4) + model(b)[:, 0], torch.ones(4, 3))
    assert torch.equal(torch.rand(3), expected)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("changed", [0, 3])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_another_record_leaves_a_gradient_bit_identical(kind: str, changed: int) -> None:
    model, x = {
        "mlp": (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(4, 6)),
        "cnn": (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 2)),
            torch.randn(4, 1, 6, 6),
        ),
    }[kind]
    other = x.clone()
    other[changed] = 1e3 * torch.randn_like(x[changed])
    before = capture(model, lambda: model(x).square().sum(1)).materialise()
    after = capture(model, lambda: model(other).square().sum(1)).materialise()
    same = torch.arange(4) != changed
    assert all(torch.equal(before[name][same], after[name][same]) for name in before)


class RunningTotal(nn.Module):
    """Adds up along the batch: a record changes the later ones, never the earlier."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1).cumsum(0))


class Gated(nn.Module):
    """Mixes records behind a factor that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.gate = nn.Linear(192, 2), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x.flatten(1))
        return y + self.gate * y.detach().mean(0)


@pytest.mark.parametrize("build", [RunningTotal, Gated])
def test_mixing_in_one_direction_or_behind_a_zero_is_seen(build: Build) -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RecordsMixError, match=f"the model itself \\({build.__name__}\\)"):
        check_isolation(model, cross_entropy(model), images())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_frozen_table_that_the_model_rewrites_is_refused() -> None:
    table = nn.Embedding.from_pretrained(3 * torch.ones(5, 4), max_norm=1.0)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(8, 2))
    batch = torch.tensor([[0, 1], [2, 3], [1, 4]]), torch.tensor([0, 1, 0])
    with pytest.raises(RecordsMixError, match=r"parameter 'weight' of the module '0' \(Embedding"):
        check_isolation(model, cross_entropy(model), batch)
    assert torch.equal(table.weight, 3 * torch.ones(5, 4))
