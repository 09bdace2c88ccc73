from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from plumbline.gradients import RecordsMixError, capture
from tests.gradients.harness import (
    AUTOCAST,
    PRECISIONS,
    Precision,
    assert_matches_loop,
    output_losses,
)

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "group": (lambda: nn.GroupNorm(2, 4), (5, 4, 6, 6)),
    "group of all channels": (lambda: nn.GroupNorm(1, 4), (5, 4, 6)),
    "one group per channel": (lambda: nn.GroupNorm(4, 4), (5, 4, 3, 2, 2)),
    "group without positions": (lambda: nn.GroupNorm(2, 6), (5, 6)),
    "one record": (lambda: nn.GroupNorm(2, 4), (1, 4, 6)),
    "instance 1d": (lambda: nn.InstanceNorm1d(4, affine=True), (5, 4, 6)),
    "instance 2d": (lambda: nn.InstanceNorm2d(4, affine=True), (5, 4, 6, 3)),
    "instance 3d": (lambda: nn.InstanceNorm3d(2, affine=True), (5, 2, 3, 3, 3)),
}


def _randomised(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        nn.init.normal_(parameter, mean=1)
    return layer


@PRECISIONS
@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_every_setting(
    build: Callable[[], nn.Module], shape: tuple[int, ...], precision: Precision
) -> None:
    assert_matches_loop(_randomised(build()), torch.randn(shape), **precision)


class Narrow(nn.Module):
    """What a convolution in front does under autocast, which leaves the norm's own type alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16()


@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_bfloat16_inputs_under_autocast(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    model = nn.Sequential(Narrow(), _randomised(build()))
    assert_matches_loop(model, torch.randn(shape), **AUTOCAST)


@st.composite
def norms(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    spatial = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    instance = [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d][len(spatial) - 1]
    layer = (
        instance(groups * each, affine=True)
        if draw(st.booleans())
        else nn.GroupNorm(groups, groups * each)
    )
    return layer, (draw(st.integers(1, 4)), groups * each, *spatial)


@given(norms())
def test_any_shape(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    layer, shape = drawn
    torch.manual_seed(0)
    model = nn.Sequential(_randomised(layer), nn.Tanh(), nn.Linear(shape[-1], 2))
    assert_matches_loop(model, torch.randn(shape))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_is_left_out(frozen: str) -> None:
    layer = _randomised(nn.GroupNorm(2, 4))
    getattr(layer, frozen).requires_grad_(False)
    assert_matches_loop(layer, torch.randn(5, 4, 6))


def test_between_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3)
    )
    assert_matches_loop(model, torch.randn(5, 2, 7, 7))


def test_channels_last_images() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4))
    images = torch.randn(5, 2, 7, 7).to(memory_format=torch.channels_last)
    assert_matches_loop(model.to(memory_format=torch.channels_last), images)


def test_under_autocast() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Conv2d(4, 2, 3))
    assert_matches_loop(model, torch.randn(5, 2, 7, 7), **AUTOCAST)


def test_running_statistics_in_training_are_refused() -> None:
    model = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    inputs = torch.randn(5, 4, 6)
    before = model.running_mean.clone()
    with pytest.raises(RecordsMixError, match="track_running_stats=False"):
        capture(model, output_losses, inputs)
    assert torch.equal(model.running_mean, before)


@PRECISIONS
def test_running_statistics_in_evaluation_work(precision: Precision) -> None:
    model = _randomised(nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    nn.init.normal_(model.running_mean)
    assert_matches_loop(model.eval(), torch.randn(5, 4, 6), **precision)
