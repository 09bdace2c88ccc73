import pytest
import torch
from torch import nn

from plumbline.gradients import RecordsMixError, capture
from tests.gradients.harness import assert_matches_loop, record_losses

LAYERS = {
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_every_setting(build, shape: tuple[int, ...], dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    assert_matches_loop(_randomised(build()), torch.randn(shape), dtype=dtype)


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
    assert_matches_loop(model, torch.randn(5, 2, 7, 7), dtype=torch.float32, autocast=True)


def test_running_statistics_in_training_are_refused() -> None:
    model = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    inputs = torch.randn(5, 4, 6)
    before = model.running_mean.clone()
    with pytest.raises(RecordsMixError, match="track_running_stats=False"):
        capture(model, lambda: record_losses(model(inputs)))
    assert torch.equal(model.running_mean, before)


def test_running_statistics_in_evaluation_work() -> None:
    model = _randomised(nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    nn.init.normal_(model.running_mean)
    assert_matches_loop(model.eval(), torch.randn(5, 4, 6))
