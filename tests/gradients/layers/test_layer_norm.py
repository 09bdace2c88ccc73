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
    "layer": (lambda: nn.LayerNorm(6), (5, 6)),
    "layer, sequence": (lambda: nn.LayerNorm(6), (5, 4, 6)),
    "layer, as many positions as records": (lambda: nn.LayerNorm(6), (4, 4, 6)),
    "layer, rank four": (lambda: nn.LayerNorm(6), (5, 2, 3, 6)),
    "layer over two dimensions": (lambda: nn.LayerNorm((3, 4)), (5, 3, 4)),
    "layer over two dimensions, sequence": (lambda: nn.LayerNorm((3, 4)), (5, 2, 3, 4)),
    "layer without bias": (lambda: nn.LayerNorm(6, bias=False), (5, 4, 6)),
    "one record": (lambda: nn.LayerNorm(6), (1, 4, 6)),
    "rms": (lambda: nn.RMSNorm(6), (5, 4, 6)),
    "rms over two dimensions": (lambda: nn.RMSNorm((3, 4)), (5, 2, 3, 4)),
    "rms, no sequence": (lambda: nn.RMSNorm(6), (5, 6)),
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


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_is_left_out(frozen: str) -> None:
    layer = _randomised(nn.LayerNorm(6))
    getattr(layer, frozen).requires_grad_(False)
    assert_matches_loop(layer, torch.randn(5, 4, 6))


@PRECISIONS
@pytest.mark.parametrize("build", [nn.LayerNorm, nn.RMSNorm])
def test_sequence_first(build: Callable[[int], nn.Module], precision: Precision) -> None:
    assert_matches_loop(_randomised(build(6)), torch.randn(4, 5, 6), batch_dim=1, **precision)


@given(
    records=st.integers(1, 5),
    positions=st.lists(st.integers(1, 4), max_size=2),
    over=st.lists(st.integers(2, 5), min_size=1, max_size=2),
    kind=st.sampled_from([nn.LayerNorm, nn.RMSNorm]),
)
def test_any_shape(
    records: int, positions: list[int], over: list[int], kind: Callable[[list[int]], nn.Module]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(_randomised(kind(over)), nn.Tanh(), nn.Linear(over[-1], 2))
    assert_matches_loop(model, torch.randn(records, *positions, *over))


def test_a_reused_layer() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(torch.tanh(self.linear(self.norm(x))))

    assert_matches_loop(Twice(), torch.randn(5, 3, 6))


def test_an_in_place_activation_afterwards() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    assert_matches_loop(model, torch.randn(5, 3, 6))


class Narrow(nn.Module):
    """What a linear layer in front does under autocast, which leaves the norm's own type alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16()


# torch itself warns that it has no fused kernel for bfloat16 inputs and float32 weights.
unfused = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


@unfused
@pytest.mark.parametrize("build", [nn.LayerNorm, nn.RMSNorm])
def test_under_autocast(build: Callable[[int], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(16, 16), build(16), nn.Linear(16, 4))
    assert_matches_loop(model, torch.randn(5, 3, 16), **AUTOCAST)


@unfused
@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_bfloat16_inputs_under_autocast(
    build: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    model = nn.Sequential(Narrow(), _randomised(build()))
    assert_matches_loop(model, torch.randn(shape), **AUTOCAST)


BATCH_NORMS = {
    "1d": (lambda: nn.BatchNorm1d(4), (5, 4)),
    "1d, sequence": (lambda: nn.BatchNorm1d(4), (5, 4, 3)),
    "2d": (lambda: nn.BatchNorm2d(4), (5, 4, 3, 3)),
}


@PRECISIONS
@pytest.mark.parametrize("front", [nn.Identity, Narrow], ids=["", "bfloat16 inputs"])
@pytest.mark.parametrize(("build", "shape"), BATCH_NORMS.values(), ids=BATCH_NORMS.keys())
def test_batch_norm_with_fixed_statistics(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    front: type[nn.Module],
    precision: Precision,
) -> None:
    layer = _randomised(build())
    nn.init.normal_(layer.running_mean)
    nn.init.uniform_(layer.running_var, 0.5, 1.5)
    model = nn.Sequential(front() if precision is AUTOCAST else nn.Identity(), layer)
    assert_matches_loop(model.eval(), torch.randn(shape), **precision)


@pytest.mark.parametrize("statistics", [True, False])
def test_batch_norm_in_training_is_refused(statistics: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=statistics))
    inputs = torch.randn(5, 3)
    with pytest.raises(
        RecordsMixError, match=r"'1' \(BatchNorm1d\) is in training mode.*GroupNorm"
    ):
        capture(model, output_losses, inputs)


def test_batch_norm_that_never_keeps_statistics_is_refused_in_evaluation_too() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval()
    inputs = torch.randn(5, 3)
    with pytest.raises(RecordsMixError, match=r"'1\.weight'"):
        capture(model, output_losses, inputs)
