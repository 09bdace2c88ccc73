"""What a capture is refused for: each error names the thing and the remedy."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plumbline.gradients import (
    CaptureError,
    LossError,
    Perturbation,
    UnsupportedModelError,
    capture,
)
from tests.gradients.devices import seeded
from tests.gradients.harness import output_losses, record_losses


@pytest.fixture(params=[False, True], ids=["first capture", "later capture"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    if request.param:
        capture(net, output_losses, torch.randn(7, 4))
    return net


def inputs() -> Tensor:
    return torch.randn(5, 4, generator=seeded(0))


def test_a_scalar_loss(model: nn.Module) -> None:
    labels = torch.tensor([0, 1, 1, 0, 1])
    with pytest.raises(LossError, match=r'one loss per record.*shape \(\).*reduction="none"'):
        capture(model, lambda: F.cross_entropy(model(inputs()), labels))


@pytest.mark.parametrize(
    "losses",
    [
        lambda output: torch.cat([output.sum(1), output.sum(1)]),
        lambda output: output.sum(1)[:3],
        lambda output: output.flatten(),
    ],
    ids=["too many", "too few", "one per output"],
)
def test_a_loss_of_the_wrong_length(model: nn.Module, losses: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(LossError, match=r"\d+ losses for a batch of 5.*one loss per record"):
        capture(model, lambda: losses(model(inputs())), records=5)


@pytest.mark.parametrize(
    "losses",
    [lambda output: torch.cat([output.sum(1)] * 2), lambda output: output.sum(1)[:3]],
    ids=["too many", "too few"],
)
def test_a_loss_of_the_wrong_length_when_nobody_gave_the_number_of_records(
    model: nn.Module, losses: Callable[[Tensor], Tensor]
) -> None:
    with pytest.raises(CaptureError, match=r"losses for a batch of 5 records"):
        capture(model, lambda: losses(model(inputs())))


def test_a_loss_per_record_with_a_second_dimension(model: nn.Module) -> None:
    with pytest.raises(LossError, match=r"one loss per record.*\(5, 1\).*to one number"):
        capture(model, lambda: model(inputs()).sum(1, keepdim=True))


def test_a_loss_per_token() -> None:
    net = nn.Linear(4, 3)
    tokens = torch.randn(5, 7, 4)
    with pytest.raises(LossError, match=r"\(5, 7\).*one number"):
        capture(net, lambda: net(tokens).sum(2))
    with pytest.raises(CaptureError, match=r"35 losses for a batch of 5.*tokens"):
        capture(net, lambda: net(tokens).sum(2).flatten(), records=5)


@pytest.mark.parametrize("value", [None, 0.5, [1.0, 2.0], "loss"])
def test_no_tensor_at_all(model: nn.Module, value: object) -> None:
    def losses() -> Tensor:
        model(inputs())
        return value  # type: ignore[return-value]

    with pytest.raises(LossError, match=rf"tensor of shape \[B\], got {type(value).__name__}"):
        capture(model, losses)


def test_losses_that_do_not_depend_on_the_model(model: nn.Module) -> None:
    with pytest.raises(LossError, match=r"do not depend on any trainable parameter.*detached"):
        capture(model, lambda: inputs().sum(1))


@pytest.mark.parametrize("how", ["no_grad", "detach"])
def test_losses_that_are_cut_off(model: nn.Module, how: str) -> None:
    def losses() -> Tensor:
        if how == "detach":
            return record_losses(model(inputs()).detach())
        with torch.no_grad():
            return record_losses(model(inputs()))

    with pytest.raises(LossError, match="no_grad, or its output detached"):
        capture(model, losses)


@pytest.mark.parametrize(
    "build", [lambda: nn.Linear(4, 2).requires_grad_(False), nn.Tanh], ids=["frozen", "none"]
)
def test_no_trainable_parameter(build: Callable[[], nn.Module]) -> None:
    net = build()
    with pytest.raises(UnsupportedModelError, match=r"no trainable parameter.*Unfreeze"):
        capture(net, lambda: pytest.fail("it ran"))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) + self.right(right)


@pytest.mark.parametrize("records", [None, 5, 7])
def test_inputs_whose_batch_dimensions_differ(records: int | None) -> None:
    class Model(TwoInputs):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            # A model that torch itself would not stop.
            return self.left(left)[:5] + self.right(right)[:5]

    net = Model()
    left, right = torch.randn(5, 4), torch.randn(7, 5)
    with pytest.raises(
        CaptureError, match=r"'(left|right)\..*same batch dimension|5 losses for a batch of 7"
    ):
        capture(net, lambda: record_losses(net(left, right)), records=records)


@pytest.mark.parametrize("records", [None, 5, 7])
def test_inputs_whose_batch_dimensions_do_not_fit(records: int | None) -> None:
    net = TwoInputs()
    left, right = torch.randn(5, 4), torch.randn(7, 5)
    with pytest.raises(RuntimeError, match=r"size of tensor a \(5\)"):  # the model's own error
        capture(net, lambda: record_losses(net(left, right)), records=records)


class IgnoresItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.answer.square()


def test_a_module_that_ignores_its_records() -> None:
    net = IgnoresItsInput()
    with pytest.raises(LossError, match=r"'answer' but on no record.*ignores its input"):
        capture(net, lambda: net(inputs()[:3]))


def test_a_layer_that_averages_the_batch_first() -> None:
    class Averages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.mean(0, keepdim=True))[0]

    net = Averages()
    with pytest.raises(CaptureError, match=r"'linear\.weight'|on no record"):
        capture(net, lambda: net(inputs()))


def test_a_perturbation_by_another_number_of_records(model: nn.Module) -> None:
    gradients = capture(model, output_losses, inputs())
    with pytest.raises(CaptureError, match="5 losses for a batch of 3 records"):
        capture(
            model,
            output_losses,
            inputs(),
            at=Perturbation(gradients.select(torch.arange(3)), 0.1),
        )


@pytest.mark.parametrize("shape", [(4,), (5, 1), (2, 5)])
def test_a_scale_that_is_not_one_number_per_record(
    model: nn.Module, shape: tuple[int, ...]
) -> None:
    scale = torch.ones(shape)
    gradients = capture(model, output_losses, inputs())
    with pytest.raises(CaptureError, match=r"scale.*one.*per record.*5"):
        capture(model, output_losses, inputs(), at=Perturbation(gradients, scale))


def test_a_perturbation_by_another_models_gradients(model: nn.Module) -> None:
    other = nn.Linear(4, 2)
    gradients = capture(other, output_losses, inputs())
    with pytest.raises(CaptureError, match=r"'weight'.*not a trainable parameter"):
        capture(model, output_losses, inputs(), at=Perturbation(gradients, 0.1))
