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

    def losses(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1])

    # Of one record, a mean is the loss itself: there is nobody to be reduced with.
    found = capture(model, losses, (inputs(), labels))
    expected = F.cross_entropy(model(inputs()), labels, reduction="none")
    torch.testing.assert_close(found.losses, expected.detach())
    with pytest.raises(LossError, match=r"batch of 5 must have shape \[5\].*shape \(\)"):
        capture(model, losses, (inputs(), labels), rows=5)


@pytest.mark.parametrize(
    "losses",
    [
        lambda output: torch.cat([output.sum(1), output.sum(1)]),
        lambda output: output.sum(1)[:0],
        lambda output: output.flatten(),
    ],
    ids=["too many", "too few", "one per output"],
)
def test_a_loss_of_the_wrong_length(model: nn.Module, losses: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(LossError, match=r"batch of 1 must have shape \[1\], one loss per record"):
        capture(model, lambda net, x: losses(net(x)), inputs())


def test_a_loss_per_record_with_a_second_dimension(model: nn.Module) -> None:
    with pytest.raises(LossError, match=r"one loss per record.*\(1, 1\).*to one number"):
        capture(model, lambda net, x: net(x).sum(1, keepdim=True), inputs())


def test_a_loss_per_token() -> None:
    net = nn.Linear(4, 3)
    tokens = torch.randn(5, 7, 4)
    with pytest.raises(LossError, match=r"\(1, 7\).*one number"):
        capture(net, lambda net, x: net(x).sum(2), tokens)
    with pytest.raises(LossError, match=r"\(7,\).*one number"):
        capture(net, lambda net, x: net(x).sum(2).flatten(), tokens)


@pytest.mark.parametrize("value", [None, 0.5, [1.0, 2.0], "loss"])
def test_no_tensor_at_all(model: nn.Module, value: object) -> None:
    def losses(net: nn.Module, x: Tensor) -> Tensor:
        net(x)
        return value  # type: ignore[return-value]

    message = rf"tensor with one number per record, got {type(value).__name__}"
    for isolation in ("vmap", "loop"):
        with pytest.raises(LossError, match=message):
            capture(model, losses, inputs(), isolation=isolation)  # type: ignore[arg-type]


def test_losses_that_do_not_depend_on_the_model(model: nn.Module) -> None:
    with pytest.raises(LossError, match=r"do not depend on any trainable parameter.*detached"):
        capture(model, lambda net, x: x.sum(1), inputs())


@pytest.mark.parametrize("how", ["no_grad", "detach"])
def test_losses_that_are_cut_off(model: nn.Module, how: str) -> None:
    def losses(net: nn.Module, x: Tensor) -> Tensor:
        if how == "detach":
            return record_losses(net(x).detach())
        with torch.no_grad():
            return record_losses(net(x))

    for isolation in ("vmap", "loop"):
        with pytest.raises(LossError, match="no_grad, or its output detached"):
            capture(model, losses, inputs(), isolation=isolation)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "build", [lambda: nn.Linear(4, 2).requires_grad_(False), nn.Tanh], ids=["frozen", "none"]
)
def test_no_trainable_parameter(build: Callable[[], nn.Module]) -> None:
    net = build()
    with pytest.raises(UnsupportedModelError, match=r"no trainable parameter.*Unfreeze"):
        capture(net, lambda net, x: pytest.fail("it ran"), inputs())


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) + self.right(right)


def test_inputs_whose_batch_dimensions_differ() -> None:
    net = TwoInputs()
    left, right = torch.randn(5, 4), torch.randn(7, 5)
    with pytest.raises(CaptureError, match=r"5 and 7 rows.*one row per record.*in its first"):
        capture(net, output_losses, (left, right))


@pytest.mark.parametrize("rows", [2, 3, 4, 0, -1])
def test_rows_that_do_not_fit_the_batch(model: nn.Module, rows: int) -> None:
    with pytest.raises(CaptureError, match=rf"rows={rows}.*5 rows"):
        capture(model, output_losses, inputs(), rows=rows)


def test_another_isolation_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"'tested'.*'vmap' or 'loop'"):
        capture(model, output_losses, inputs(), isolation="tested")  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [None, [], "text", {"name": "kept"}, torch.tensor(3.0)])
def test_a_batch_without_rows(model: nn.Module, batch: object) -> None:
    with pytest.raises(CaptureError, match=r"has no tensors with one row per record"):
        capture(model, output_losses, batch)


def test_the_models_own_error_stays_as_it_is(model: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        capture(model, output_losses, torch.randn(5, 3))


class IgnoresItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.answer.square()


def test_a_module_that_ignores_its_records() -> None:
    net = IgnoresItsInput()
    with pytest.raises(LossError, match=r"'answer' but on no record.*ignores its input"):
        capture(net, lambda net, x: net(x).sum(), inputs()[:3])


def test_a_loss_that_ignores_its_records(model: nn.Module) -> None:
    with pytest.raises(LossError, match="does not depend on the record's data"):
        capture(model, lambda net, x: torch.ones(1), inputs())


def test_a_perturbation_by_another_number_of_records(model: nn.Module) -> None:
    gradients = capture(model, output_losses, inputs())
    with pytest.raises(CaptureError, match="for 3 records, but the batch has 5"):
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
