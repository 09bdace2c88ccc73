"""The convolutional network of paper 004."""

import torch
import torch.nn.functional as F

from plumbline.models import build


def test_two_valid_convolutions_with_tanh() -> None:
    model = build("fair-cnn-celeba", size=10)
    first, first_bias, second, second_bias, weight, bias = model.parameters()
    assert [tuple(p.shape) for p in (first, second, weight)] == [
        (32, 3, 3, 3),
        (16, 32, 3, 3),
        (2, 16 * 6 * 6),
    ]
    records = torch.randn(2, 3, 10, 10)
    hidden = torch.tanh(F.conv2d(records, first, first_bias))
    hidden = torch.tanh(F.conv2d(hidden, second, second_bias))
    torch.testing.assert_close(model(records), hidden.flatten(1) @ weight.T + bias)
