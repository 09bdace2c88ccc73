"""The network with one hidden layer on all pixels."""

import torch

from plumbline.models import build


def test_one_hidden_layer_with_tanh_on_all_pixels() -> None:
    model = build("image-mlp", in_channels=3, size=4, hidden=5, classes=2)
    first, first_bias, second, second_bias = model.parameters()
    assert [tuple(p.shape) for p in (first, second)] == [(5, 48), (2, 5)]
    records = torch.randn(2, 3, 4, 4)
    hidden = torch.tanh(records.flatten(1) @ first.T + first_bias)
    torch.testing.assert_close(model(records), hidden @ second.T + second_bias)
