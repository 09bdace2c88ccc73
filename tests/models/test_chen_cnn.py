"""The networks of paper 001."""

import torch
from torch import nn

from plumbline.models import build


def test_mnist_leaves_512_features() -> None:
    model = build("chen-mnist")
    x = torch.randn(2, 1, 28, 28)
    shapes = [tuple((x := layer(x)).shape[1:]) for layer in model]
    pooled = [shape for shape, layer in zip(shapes, model, strict=True) if "Pool" in str(layer)]
    assert pooled == [(16, 12, 12), (32, 4, 4)]
    assert (512,) in shapes


def test_cifar_drops_half_of_every_hidden_layer_in_training_alone() -> None:
    model = build("chen-cifar", size=8)
    x = torch.randn(2, 3, 8, 8)
    assert [m.p for m in model if isinstance(m, nn.Dropout)] == [0.5, 0.5, 0.5]
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    without = build("chen-cifar", size=8, dropout=0.0)
    assert torch.equal(without(x), without(x))
