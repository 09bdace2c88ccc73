"""``explain`` names a kernel for every parameter."""

import torch
from torch import nn

from plumbline.gradients import KERNELS, explain


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 3)
    )


def test_every_parameter_has_a_row() -> None:
    model = network()
    explanation = explain(model, torch.randn(5, 1, 8, 8))
    assert [choice.parameter for choice in explanation.choices] == [
        name for name, _ in model.named_parameters()
    ]
    assert explanation.records == 5
    kernels = {choice.parameter: choice.kernel for choice in explanation.choices}
    assert kernels["4.weight"] == "product"
    assert kernels["0.weight"] in {"keep", "stream"}
    assert "4.weight" in str(explanation)


def test_alternatives_are_measured_where_measuring_is_on() -> None:
    model = network()
    measure, KERNELS.measure = KERNELS.measure, True
    try:
        (row, *_) = explain(model, torch.randn(7, 1, 8, 8)).choices
    finally:
        KERNELS.measure = measure
    assert set(row.seconds) == {"keep", "stream"}
    assert all(seconds > 0 for seconds in row.seconds.values())
    assert row.memory["keep"] == 7 * 36 * 4


def test_named_inputs_tuples_and_losses() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.layer(a + b)

    model, x = Two(), torch.randn(4, 3)
    for batch in ((x, x), {"a": x, "b": x}):
        assert explain(model, batch).records == 4
    assert explain(model, x, lambda net, x: net(x, x).sum(1)).records == 4
