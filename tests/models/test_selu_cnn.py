"""CNN-Tanh with SELU."""

from torch import nn

from plumbline.models import build


def test_pairs_of_convolutions_with_selu_and_a_pool() -> None:
    kinds = [type(layer).__name__ for layer in build("selu-cnn")]
    pair = ["Conv2d", "SELU"] * 2 + ["MaxPool2d"]
    assert kinds == pair * 3 + ["Flatten", "Linear", "SELU", "Linear"]
    widths = [m.out_channels for m in build("selu-cnn") if isinstance(m, nn.Conv2d)]
    assert widths == [32, 32, 64, 64, 128, 128]
