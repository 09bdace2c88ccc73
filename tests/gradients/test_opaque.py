"""Compiled code, and autocast around a capture, are refused before anything is charged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients import capture
from plumbline.gradients.errors import CaptureError, UnsupportedModelError
from plumbline.gradients.opaque import refuse_opaque
from tests.training.small import LOSS, budget, network, private

BF16 = torch.bfloat16


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="eager")


class Around(nn.Module):
    """A network in a module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


class CompiledForward(Around):
    forward = compiled(Around.forward)


def with_compiled_function() -> nn.Module:
    model = Around()
    model.activation = compiled(torch.tanh)  # type: ignore[assignment]
    return model


def with_compiled_part() -> nn.Module:
    model = Around()
    model.inner[0] = compiled(model.inner[0])
    return model


def compiled_in_place() -> nn.Module:
    model = network()
    model.compile(backend="eager")
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "whole": (lambda: compiled(network()), r"The model is compiled.*_orig_mod"),
    "in place": (compiled_in_place, "The model is compiled.*built anew"),
    "a part": (with_compiled_part, r"The module 'inner\.0' is compiled"),
    "its forward": (CompiledForward, "function 'forward' that is compiled"),
    "a function that it holds": (with_compiled_function, "function 'activation' that is compiled"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_is_refused_before_noise_is_calibrated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pl.Budget, "resolve", lambda *_, **__: pytest.fail("it was planned"))
    build, message = MODELS[name]
    with pytest.raises(UnsupportedModelError, match=message):
        private(build(), plan=budget(noise_multiplier=None, epsilon=1.0))


@pytest.mark.parametrize(
    "loss",
    [
        compiled(LOSS),
        compiled(lambda output, y: LOSS(output, y)),
        pl.batch_loss(compiled(lambda model, batch: LOSS(model(batch[0]), batch[1]))),
    ],
    ids=["module", "function", "of the batch"],
)
def test_a_compiled_loss_is_refused(loss: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"^The loss is .*torch\.compile"):
        private(loss=loss)


def test_a_compiled_function_that_is_called_is_refused_before_the_charge(tmp_path: Path) -> None:
    hidden = compiled(torch.tanh)

    class Calls(Around):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = hidden(self.inner(x))
            return out

    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        run = private(Calls(), ledger=ledger)
        with pytest.raises(UnsupportedModelError, match="calls a function that is compiled"):
            run.step(next(iter(run)))
        assert ledger.runs() == set()


def test_what_is_kept_from_being_compiled_is_welcome() -> None:
    model = Around()
    model.forward = torch.compiler.disable(model.forward)  # type: ignore[method-assign]
    refuse_opaque(model)


def test_the_original_of_a_compiled_model_trains_and_shares_its_weights() -> None:
    model = network()
    fast = compiled(model)
    run = private(fast._orig_mod)
    before = fast(torch.ones(1, 6)).detach()
    run.step(next(iter(run)))
    after = fast(torch.ones(1, 6)).detach()
    assert not torch.equal(before, after)
    assert torch.equal(after, model(torch.ones(1, 6)).detach())


def test_autocast_around_make_private_is_refused() -> None:
    with torch.autocast("cpu", BF16), pytest.raises(CaptureError, match="inside the model"):
        private()


def test_autocast_around_a_step_is_refused_before_the_charge(tmp_path: Path) -> None:
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        run = private(ledger=ledger)
        batch = next(iter(run))
        with torch.autocast("cpu", BF16), pytest.raises(CaptureError, match="around private"):
            run.step(batch)
        assert ledger.runs() == set()
        run.step(batch)  # which was not spent
        assert ledger.charged(run.run) == 1


def test_anomaly_detection_which_would_stop_at_a_bad_record_is_refused_before_the_charge(
    tmp_path: Path,
) -> None:
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        run = private(ledger=ledger)
        batch = next(iter(run))
        with torch.autograd.set_detect_anomaly(True):
            with pytest.raises(CaptureError, match="shows that there is one"):
                run.step(batch)
            with pytest.raises(CaptureError, match="shows that there is one"):
                private()
        assert ledger.runs() == set()
        run.step(batch)


@pytest.mark.parametrize("isolation", ["vmap", "loop"])
def test_autocast_that_a_model_leaves_on_is_refused(isolation: Any) -> None:
    class LeftOn(Around):
        def forward(self, x: Tensor) -> Tensor:
            torch.set_autocast_enabled("cpu", True)
            return super().forward(x)

    try:
        with pytest.raises(CaptureError, match=r"torch\.autocast is on"):
            capture(LeftOn(), lambda net, x: net(x).sum(1), torch.ones(3, 6), isolation=isolation)
    finally:
        torch.set_autocast_enabled("cpu", False)


def test_autocast_inside_trains_and_its_sums_are_not_rounded() -> None:
    # Records at the bound: what is released without noise is their sum, to float32's precision.
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
    x = torch.randn(16, 64, 256, generator=generator)

    def losses(net: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", BF16):
            return net(x).float().flatten(1).square().mean(1)

    found = capture(model, losses, x)
    norms, dense = found.norms().double(), found.materialise()
    total = found.total(1 / norms.float())
    for name, value in dense.items():
        expected = torch.einsum("b,b...->...", 1 / norms, value.double())
        assert float((total[name] - expected).norm()) < 1e-6
    squares = torch.stack([value.double().flatten(1).square().sum(1) for value in dense.values()])
    assert bool((norms >= squares.sum(0).sqrt() * (1 - 2e-6)).all())


def test_a_hook_on_a_gradient_that_would_not_be_called_is_refused() -> None:
    model = network()
    hook = model[0].weight.register_hook(torch.zeros_like)  # a mask, say
    with pytest.raises(UnsupportedModelError, match=r"parameter '0\.weight' has a hook.*requires_"):
        private(model, isolation="loop")
    hook.remove()
    hook = model[0].bias.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(UnsupportedModelError, match=r"parameter '0\.bias' has a hook"):
        private(model)
    hook.remove()
    for put in (model[0].register_full_backward_hook, model[0].register_full_backward_pre_hook):
        hook = put(lambda *_: None)
        with pytest.raises(UnsupportedModelError, match=r"module '0' has a hook.*loop"):
            private(model)
        private(model, isolation="loop")
        hook.remove()
    private(model)
