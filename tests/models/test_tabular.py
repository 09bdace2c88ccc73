"""The networks for Adult and Dutch."""

import math

import torch
from torch import nn

from plumbline.models import build


def test_adult_has_two_hidden_layers_of_tanh() -> None:
    model = build("adult-mlp")
    w1, b1, w2, b2, w3, b3 = model.parameters()
    assert (w1.shape, w2.shape, w3.shape) == ((256, 98), (256, 256), (2, 256))
    x = torch.randn(3, 98)
    hidden = torch.tanh(torch.tanh(x @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(model(x), hidden @ w3.T + b3)


def test_dutch_has_sigmoids_before_the_loss() -> None:
    model = build("dutch-linear")
    weight, bias = model.parameters()
    x = torch.randn(4, 59)
    torch.testing.assert_close(model(x), 1 / (1 + torch.exp(-(x @ weight.T + bias))))
    with torch.no_grad():  # as sure of both classes as it can be: the loss's two ends
        weight.zero_()
        bias.copy_(torch.tensor([100.0, -100.0]))
    losses = nn.CrossEntropyLoss(reduction="none")(model(x[:2]), torch.tensor([0, 1]))
    ends = torch.tensor([math.log(1 + math.exp(-1)), math.log(1 + math.e)])
    torch.testing.assert_close(losses, ends)
