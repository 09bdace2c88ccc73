from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from plumbline.gradients.layers import convolution
from tests.gradients.harness import (
    AUTOCAST,
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
    "one by one": (lambda: nn.Conv2d(3, 4, 1), (5, 3, 9, 8)),
    "one by one, few positions": (lambda: nn.Conv2d(3, 4, 1), (5, 3, 4, 4)),
    "patches": (lambda: nn.Conv2d(3, 4, (2, 3), stride=(2, 3)), (5, 3, 7, 9)),
    "patches 1d": (lambda: nn.Conv1d(3, 4, 2, stride=2), (5, 3, 9)),
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
    "unfold": [*PLAIN, "stride that skips the border"],
}
COMPILED = [
    "1d", "2d", "stride", "zero padding", "same", "reflect", "one by one", "one record",
    "as large as the image", "stride that skips the border",
]  # fmt: skip


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiled loop, for small convolutions too."""
    monkeypatch.setattr(convolution, "_WORTH", 0)
    with kernel("compiled"):
        yield


@PRECISIONS
@pytest.mark.parametrize(
    ("name", "which"), [(name, which) for name, layers in KERNELS_OF.items() for which in layers]
)
def test_every_dense_kernel(name: str, which: str, precision: Precision) -> None:
    build, shape = LAYERS[which]
    with kernel(name):
        assert_matches_loop(build(), torch.randn(shape), **precision)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("precision", [{"dtype": torch.float32}, AUTOCAST], ids=["float32", "bf16"])
@pytest.mark.parametrize("which", COMPILED)
def test_the_compiled_loop(which: str, precision: Precision) -> None:
    build, shape = LAYERS[which]
    assert_matches_loop(build(), torch.randn(shape), **precision)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("channels", [(8, 12), (16, 4), (17, 9), (24, 40), (3, 70)])
@pytest.mark.parametrize("image", [(8, 8), (5, 19), (40, 16)])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_compiled_loop_with_many_channels(
    channels: tuple[int, int], image: tuple[int, int], stride: int
) -> None:
    model = nn.Conv2d(*channels, 3, padding=1, stride=stride)
    inputs = torch.randn(3, channels[0], *image)
    assert_matches_loop(model, inputs, dtype=torch.float32, perturbed=False)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("norm", ["keep", "stream"])
def test_the_compiled_loop_several_times(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.gradients.terms.CHUNK_BYTES", 1 << 12)
    with kernel(norm):
        model = nn.Conv2d(2, 3, 3, padding=1)
        assert_matches_loop(model, torch.randn(35, 2, 5, 4), dtype=torch.float32, perturbed=False)


@pytest.mark.parametrize("name", KERNELS_OF)
def test_every_dense_kernel_over_several_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # 35 records: the chunks of a small buffer end within the batch.
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
def convolutions(
    draw: st.DrawFn, simple: bool = False, dilated: bool = True
) -> tuple[nn.Module, tuple[int, ...]]:
    spatial = 2 if simple else draw(st.integers(1, 2))
    groups = 1 if simple else draw(st.sampled_from([1, 1, 2]))
    each = st.tuples(*[st.integers(1, 3)] * spatial)
    size, dilation = draw(each), draw(each) if dilated else (1,) * spatial
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


@given(drawn=convolutions(simple=True))
def test_any_shape_unfolded(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    layer, shape = drawn
    torch.manual_seed(0)
    with mock.patch.object(convolution, "_FEW", 0), kernel("unfold"):
        assert_matches_loop(layer, torch.randn(shape), perturbed=False)


@given(drawn=convolutions(simple=True, dilated=False))
def test_any_shape_compiled(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    layer, shape = drawn
    torch.manual_seed(0)
    with mock.patch.multiple(convolution, _WORTH=0, _FEW=0), kernel("compiled"):
        assert_matches_loop(layer, torch.randn(shape), dtype=torch.float32, perturbed=False)


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
