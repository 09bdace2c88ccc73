"""BatchNorm over some rows together, against real BatchNorm in training mode, group by group."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients import grouped_batch_norm, without_batch_norm

SIZES = (2, 5, 3, 4)  # rows of each group
LAYERS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, ()),
    "1d of sequences": (nn.BatchNorm1d, (6,)),
    "2d": (nn.BatchNorm2d, (4, 3)),
    "3d": (nn.BatchNorm3d, (2, 3, 2)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "no affine": {"affine": False},
    "cumulative": {"momentum": None},
    "no statistics": {"track_running_stats": False},
    "wide": {"eps": 0.3},
}


def groups(*, mixed: bool = True) -> Tensor:
    """The group of each row: not in order, unless asked for."""
    index = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    return index[torch.randperm(len(index))] if mixed else index


def layer(kind: str, **settings: Any) -> tuple[nn.Module, Tensor]:
    """A layer whose scale and shift are its own, and rows for it."""
    make, rest = LAYERS[kind]
    module = make(3, **settings).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) + 1)
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    rows = 2 + 3 * torch.randn(sum(SIZES), 3, *rest).double()
    return module, rows


def group_by_group(module: nn.Module, rows: Tensor, index: Tensor) -> Tensor:
    """A real layer, fed with one group after the other."""
    output = torch.zeros_like(rows)
    for group in index.unique():
        output = output.index_put((index == group,), module(rows[index == group]))
    return output


def trace(module: nn.Module) -> dict[str, Any]:
    """What must be as before afterwards."""
    return {
        "attributes": [sorted(part.__dict__) for part in module.modules()],
        "training": [part.training for part in module.modules()],
        "forward": [part.forward for part in module.modules()],
        "state": {name: value.clone() for name, value in module.state_dict().items()},
    }


def assert_as_before(module: nn.Module, before: dict[str, Any]) -> None:
    after = trace(module)
    state = before.pop("state")
    assert after.pop("state").keys() == state.keys()
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert after == before


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_it_is_the_real_layer_run_group_by_group(kind: str, settings: str, training: bool) -> None:
    """Values and both gradients; in either mode, since running statistics have no say."""
    module, rows = layer(kind, **SETTINGS[settings])
    index = groups()
    real = copy.deepcopy(module).train()
    module.train(training)
    before = trace(module)
    rows.requires_grad_()
    weights = torch.randn_like(rows)
    with grouped_batch_norm(module, index):
        found = module(rows)
        slopes = torch.autograd.grad((weights * found).sum(), [rows, *module.parameters()])
    expected = group_by_group(real, rows, index)
    wanted = torch.autograd.grad((weights * expected).sum(), [rows, *real.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    for one, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert_as_before(module, before)


def test_no_group_moves_another() -> None:
    """Bit for bit: the sensitivity of BatchClipping and of group BatchNorm rests on this."""
    module, rows = layer("2d")
    index = groups()
    changed = rows.clone()
    changed[index == 1] = 1e6 * torch.randn_like(changed[index == 1])
    with grouped_batch_norm(module, index):
        one, other = module(rows), module(changed)
    others = index != 1
    assert torch.equal(one[others], other[others])
    assert not torch.equal(one[~others], other[~others])


def test_a_row_by_itself_is_its_shift() -> None:
    """Real BatchNorm refuses a group of one value per channel; a bucket may have one record."""
    module, rows = layer("1d")
    rows.requires_grad_()
    index = torch.arange(len(rows))
    with grouped_batch_norm(module, index):
        output = module(rows)
        (slope,) = torch.autograd.grad(output.square().sum(), rows)
    assert torch.equal(output, module.bias.expand_as(output))
    assert float(slope.abs().sum()) == 0


def test_groups_without_rows_are_no_trouble() -> None:
    module, rows = layer("1d")
    index = groups()
    rows.requires_grad_()
    with grouped_batch_norm(module, index):
        (plain,) = torch.autograd.grad(module(rows).pow(3).sum(), rows)
    with grouped_batch_norm(module, 3 * index + 2):
        (sparse,) = torch.autograd.grad(module(rows).pow(3).sum(), rows)
    assert torch.equal(plain, sparse)


def test_no_rows() -> None:
    module, rows = layer("2d")
    with grouped_batch_norm(module, torch.zeros(0, dtype=torch.long)):
        assert module(rows[:0]).shape == rows[:0].shape


def test_every_batch_norm_of_a_network_is_grouped() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Sequential(nn.Linear(12, 5), nn.BatchNorm1d(5), nn.GroupNorm(1, 5)),
    ).double()
    rows, index = torch.randn(sum(SIZES), 1, 4, 4).double(), groups()
    before = trace(model)
    with grouped_batch_norm(model, index):
        found = model(rows)
    assert_as_before(model, before)
    wanted = torch.zeros_like(found)
    for group in index.unique():
        wanted[index == group] = copy.deepcopy(model)(rows[index == group])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("context", ["grouped", "without"])
def test_the_modules_are_as_before_after_an_exception(context: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    rows = torch.randn(sum(SIZES), 3).double()
    before = trace(model)
    manager = (
        grouped_batch_norm(model, groups()) if context == "grouped" else without_batch_norm(model)
    )
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), manager:
        nn.Sequential(model, nn.Linear(7, 1).double())(rows)  # fails after the layer has run
    assert_as_before(model, before)
    model(rows)  # and the real layer takes note of its batch again
    assert int(model[1].num_batches_tracked) == 1


def test_a_forward_that_somebody_put_on_the_layer_is_there_again() -> None:
    module, rows = layer("1d")
    theirs = module.forward = lambda given: -given
    with grouped_batch_norm(module, groups()):
        with without_batch_norm(module):
            inner = module(rows)
        outer = module(rows)
    assert not torch.equal(inner, outer)
    assert module.forward is theirs
    assert torch.equal(module(rows), -rows)


def test_a_layer_used_twice_is_grouped_both_times() -> None:
    module, rows = layer("1d")
    twice = nn.Sequential(module, nn.Tanh(), module)
    index = groups()
    with grouped_batch_norm(twice, index):
        found = twice(rows)
    real = copy.deepcopy(module)
    expected = group_by_group(real, torch.tanh(group_by_group(real, rows, index)), index)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


class Folded(nn.Module):
    """Takes the positions of a sequence for rows of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, rows: Tensor) -> Tensor:
        return self.norm(rows.flatten(0, 1)).view_as(rows)


def test_another_number_of_rows_is_refused() -> None:
    model = Folded()
    before = trace(model)
    with (
        pytest.raises(ValueError, match=r"got 28 rows, but the batch has 14.*Use another norm"),
        grouped_batch_norm(model, groups()),
    ):
        model(torch.randn(14, 2, 3))
    assert_as_before(model, before)


@pytest.mark.parametrize("settings", ["usual", "no affine"])
@pytest.mark.parametrize("kind", LAYERS)
def test_without_batch_norm_only_scale_and_shift_are_left(kind: str, settings: str) -> None:
    module, rows = layer(kind, **SETTINGS[settings])
    before = trace(module)
    with without_batch_norm(module):
        found = module(rows)
    expected = rows
    if module.weight is not None:
        shape = (1, -1, *[1] * (rows.dim() - 2))
        expected = rows * module.weight.view(shape) + module.bias.view(shape)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)
    assert_as_before(module, before)
