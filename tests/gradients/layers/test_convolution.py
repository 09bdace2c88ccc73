from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from tests.gradients.harness import (
    PRECISIONS,
    Precision,
    assert_matches_loop,
    kernel,
    record_losses,
)

Build = Callable[[], nn.Module]

LAYERS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(3, 4, 3), (5, 3, 9)),
    "2d": (lambda: nn.Conv2d(3, 4, 3), (5, 3, 7, 6)),
    "3d": (lambda: nn.Conv3d(2, 3, (2, 3, 2)), (3, 2, 4, 5, 4)),
    "without bias": (lambda: nn.Conv2d(3, 4, 3, bias=False), (5, 3, 6, 6)),
    "one by one": (lambda: nn.Conv2d(3, 4, 1), (5, 3, 4, 4)),
    "as large as the image": (lambda: nn.Conv2d(3, 4, 5), (5, 3, 5, 5)),
    "stride": (lambda: nn.Conv2d(3, 4, 3, stride=(2, 3)), (5, 3, 9, 8)),
    "stride that skips the border": (lambda: nn.Conv2d(2, 3, 2, stride=3), (4, 2, 7, 7)),
    "dilation": (lambda: nn.Conv2d(3, 4, 3, dilation=(2, 1)), (5, 3, 8, 8)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (5, 4, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (5, 4, 6, 6)),
    "depthwise 1d": (lambda: nn.Conv1d(4, 4, 3, groups=4), (5, 4, 8)),
    "zero padding": (lambda: nn.Conv2d(3, 4, 3, padding=(2, 1)), (5, 3, 5, 6)),
    "same": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (5, 3, 5, 6)),
    "same, dilated": (lambda: nn.Conv1d(3, 4, 3, padding="same", dilation=2), (5, 3, 8)),
    "valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid"), (5, 3, 5, 6)),
    "reflect": (lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), (5, 3, 6, 6)),
    "circular": (lambda: nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), (5, 3, 6)),
    "replicate": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate"), (5, 3, 6, 6)),
    "one record": (lambda: nn.Conv2d(3, 4, 3), (1, 3, 6, 6)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1), (5, 3, 6)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (5, 3, 4, 5)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (3, 2, 3, 3, 3)),
    "transposed, output padding": (
        lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1),
        (5, 3, 4, 4),
    ),
    "transposed, groups, dilation": (
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2),
        (5, 4, 4, 4),
    ),
}
EVEN: dict[str, tuple[Build, tuple[int, ...]]] = {
    "same, even kernel": (lambda: nn.Conv2d(3, 4, (4, 2), padding="same"), (5, 3, 5, 6)),
    "same, even kernel, circular": (
        lambda: nn.Conv2d(2, 4, 2, padding="same", padding_mode="circular"),
        (4, 2, 5, 5),
    ),
}
# torch itself warns that it copies the input for even kernels.
even_kernels = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


@PRECISIONS
@pytest.mark.parametrize(("build", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_every_setting(build: Build, shape: tuple[int, ...], precision: Precision) -> None:
    assert_matches_loop(build(), torch.randn(shape), **precision)


@even_kernels
@PRECISIONS
@pytest.mark.parametrize(("build", "shape"), EVEN.values(), ids=EVEN.keys())
def test_even_kernels(build: Build, shape: tuple[int, ...], precision: Precision) -> None:
    assert_matches_loop(build(), torch.randn(shape), **precision)


PLAIN = ["1d", "2d", "3d", "stride", "dilation", "zero padding", "same", "reflect", "one by one"]
KERNELS_OF = {
    "grouped": [*PLAIN, "groups", "depthwise", "transposed 2d", "transposed, groups, dilation"],
    "grouped-32": [*PLAIN, "groups", "depthwise", "transposed 2d"],
    "unfold": [*PLAIN, "stride that skips the border"],
    "shift": ["2d", "dilation", "zero padding", "same", "reflect", "one by one"],
}


@PRECISIONS
@pytest.mark.parametrize(
    ("name", "which"), [(name, which) for name, layers in KERNELS_OF.items() for which in layers]
)
def test_every_dense_kernel(name: str, which: str, precision: Precision) -> None:
    build, shape = LAYERS[which]
    with kernel(name):
        assert_matches_loop(build(), torch.randn(shape), **precision)


@pytest.mark.parametrize("name", KERNELS_OF)
def test_every_dense_kernel_over_several_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 35 records: the chunks of 32, and those of a small buffer, end within the batch.
    monkeypatch.setattr("plumbline.gradients.layers.convolution._UNFOLD_BYTES", 1 << 13)
    with kernel(name):
        model = nn.Conv2d(2, 3, 3, padding=1)
        assert_matches_loop(model, torch.randn(35, 2, 5, 4), perturbed=False)


@PRECISIONS
@pytest.mark.parametrize("name", ["keep", "stream"])
def test_every_norm_kernel(name: str, precision: Precision) -> None:
    with kernel(name):
        assert_matches_loop(nn.Conv2d(2, 3, 3), torch.randn(5, 2, 12, 12), **precision)


@st.composite
def convolutions(draw: st.DrawFn, simple: bool = False) -> tuple[nn.Module, tuple[int, ...]]:
    spatial = 2 if simple else draw(st.integers(1, 2))
    groups = 1 if simple else draw(st.sampled_from([1, 1, 2]))
    each = st.tuples(*[st.integers(1, 3)] * spatial)
    size, dilation = draw(each), draw(each)
    stride = (1,) * spatial if simple else draw(each)
    padding = draw(st.tuples(*[st.integers(0, 2)] * spatial))
    transposed = not simple and draw(st.booleans())
    into, out = draw(st.integers(1, 2)) * groups, draw(st.integers(1, 2)) * groups
    image = draw(st.tuples(*[st.integers(3, 8)] * spatial))
    records = draw(st.integers(1, 4))
    reach = [gap * (k - 1) for gap, k in zip(dilation, size, strict=True)]
    for i in range(spatial):
        if transposed:
            assume((image[i] - 1) * stride[i] - 2 * padding[i] + reach[i] + 1 > 0)
        else:
            assume(image[i] + 2 * padding[i] > reach[i])
    kind = {
        (1, False): nn.Conv1d,
        (2, False): nn.Conv2d,
        (1, True): nn.ConvTranspose1d,
        (2, True): nn.ConvTranspose2d,
    }[spatial, transposed]
    layer = kind(into, out, size, stride, padding, groups=groups, dilation=dilation)
    return layer, (records, into, *image)


@given(convolutions())
def test_any_shape(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    layer, shape = drawn
    torch.manual_seed(0)
    assert_matches_loop(layer, torch.randn(shape))


@pytest.mark.parametrize("name", ["unfold", "shift"])
@given(drawn=convolutions(simple=True))
def test_any_shape_by_another_kernel(name: str, drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    layer, shape = drawn
    torch.manual_seed(0)
    with kernel(name):
        assert_matches_loop(layer, torch.randn(shape), perturbed=False)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_is_left_out(frozen: str) -> None:
    model = nn.Conv2d(3, 4, 3)
    getattr(model, frozen).requires_grad_(False)
    assert_matches_loop(model, torch.randn(5, 3, 6, 6))


def test_channels_last_images() -> None:
    images = torch.randn(5, 3, 6, 7).to(memory_format=torch.channels_last)
    for name in KERNELS_OF:
        with kernel(name):
            assert_matches_loop(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh()), images)


def test_a_reused_convolution() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolution(torch.tanh(self.convolution(x)))

    assert_matches_loop(Twice(), torch.randn(4, 3, 5, 5))


def test_images_without_a_batch_dimension() -> None:
    assert_matches_loop(
        nn.Conv2d(3, 4, 3),
        torch.randn(5, 3, 6, 6),
        losses=lambda model, x: record_losses(model(x[0])[None]),
    )
