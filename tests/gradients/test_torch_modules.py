"""Models of torch's own modules are told from all others, and every change of them is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations

from plumbline.gradients.torch_modules import TorchModules


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Dropout(0.5).eval()), nn.Linear(4, 2)
    )


LOSS = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.parametrize(
    "model",
    [
        mlp(),
        nn.Linear(2, 2),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Embedding(5, 2, padding_idx=0), nn.LayerNorm(2), nn.Dropout(0.0)),
    ],
    ids=["mlp", "linear", "convolution", "embedding"],
)
def test_models_of_torchs_own_modules(model: nn.Module) -> None:
    modules = TorchModules(model, LOSS)
    assert modules.alone
    assert modules.unchanged()


class OwnLinear(nn.Linear):
    pass


class OwnSequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / len(x)


class OwnTensor(Tensor):
    pass


def with_forward() -> nn.Module:
    model = mlp()
    own = model[0].forward
    model[0].forward = lambda x: own(x) * 2
    return model


def with_method(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Conv2d(1, 1, 1)
        setattr(model, name, lambda *args: args[0])
        return model

    return make


def with_hook(register: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = mlp()
        getattr(model[2], register)(lambda *given: None)
        return model

    return make


def with_buffer() -> nn.Module:
    model = mlp()
    model.register_buffer("own", torch.zeros(2).as_subclass(OwnTensor))
    return model


def with_attribute(value: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = mlp()
        model[0].own = value
        return model

    return make


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "a subclass": lambda: nn.Sequential(OwnLinear(3, 2)),
    "a subclass of the container": lambda: OwnSequential(nn.Linear(3, 2)),
    "deep inside": lambda: nn.Sequential(nn.Sequential(nn.Sequential(OwnLinear(3, 2)))),
    "its own forward": with_forward,
    "another method": with_method("_conv_forward"),
    "a call": with_method("_call_impl"),
    "a forward hook": with_hook("register_forward_hook"),
    "a hook before": with_hook("register_forward_pre_hook"),
    "a hook on the way back": with_hook("register_full_backward_hook"),
    "a hook before the way back": with_hook("register_full_backward_pre_hook"),
    "a parametrisation": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2))),
    "random numbers": lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1)),
    "writes to its weights": lambda: nn.Embedding(3, 2, max_norm=1.0),
    "batch statistics": lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
    "a tensor of another kind": with_buffer,
    "an object": with_attribute(object()),
    "a tensor as an attribute": with_attribute(torch.zeros(2)),
    "a function in a list": with_attribute([abs]),
    "a compiled call": with_attribute(None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_others(name: str) -> None:
    model = OTHERS[name]()
    if name == "a compiled call":
        model[0]._compiled_call_impl = lambda x: x
    assert not TorchModules(model, LOSS).alone


@pytest.mark.parametrize(
    "loss", [lambda output, target: output, OwnLinear(1, 1), None], ids=["function", "own", "none"]
)
def test_a_loss_of_another_kind(loss: Any) -> None:
    assert not TorchModules(mlp(), loss).alone


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "mode": lambda model: model[1].train(),
    "a setting": lambda model: setattr(model[1][1], "p", 0.25),
    "a module": lambda model: model.__setitem__(2, nn.Linear(4, 2)),
    "a module more": lambda model: model.append(nn.Identity()),
    "a parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(4, 3))),
    "without bias": lambda model: setattr(model[0], "bias", None),
    "frozen": lambda model: model[0].weight.requires_grad_(False),
    "another type": lambda model: model.double(),
    "another layout": lambda model: setattr(model[0].weight, "data", torch.ones(3, 4).T),
    "a hook": lambda model: model[0].register_forward_hook(lambda *given: None),
    "a forward": lambda model: setattr(model[0], "forward", lambda x: x),
    "another class": lambda model: setattr(model[0], "__class__", OwnLinear),
    "a parametrisation": lambda model: parametrizations.weight_norm(model[0]),
    "a buffer": lambda model: model[0].register_buffer("own", torch.zeros(1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name: str) -> None:
    model = mlp()
    modules = TorchModules(model, LOSS)
    CHANGES[name](model)
    assert not modules.unchanged()


def test_a_change_of_the_loss_is_seen() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.ones(2), reduction="none")
    modules = TorchModules(mlp(), loss)
    assert modules.alone
    loss.label_smoothing = 0.1
    assert not modules.unchanged()


def test_new_numbers_in_the_weights_are_no_change() -> None:
    model = mlp().eval()
    modules = TorchModules(model, LOSS)
    with torch.no_grad():
        model[0].weight.mul_(2)
    model[0].weight.data = torch.zeros(4, 3)
    model.train()
    model.eval()
    model.load_state_dict(mlp().state_dict())
    assert modules.unchanged()


@pytest.mark.parametrize("method", ["forward", "__call__"])
def test_code_of_a_class_that_is_replaced(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = TorchModules(mlp(), LOSS)
    own = getattr(nn.Linear, method)
    monkeypatch.setattr(nn.Linear, method, lambda self, x: own(self, x), raising=False)
    assert not modules.unchanged()
    assert not TorchModules(mlp(), LOSS).alone


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (nn.functional, "linear"),
        (nn.Module, "_call_impl"),
        (nn.Sequential, "__iter__"),
        (nn.Conv2d, "_conv_forward"),
    ],
)
def test_what_their_code_calls_is_replaced(
    place: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, own = TorchModules(nn.Linear(2, 2), LOSS), getattr(place, name)
    monkeypatch.setattr(place, name, lambda *args, **kwargs: own(*args, **kwargs))
    assert not modules.unchanged()
    assert not TorchModules(nn.Linear(2, 2), LOSS).alone


def test_a_hook_on_all_modules() -> None:
    modules = TorchModules(mlp(), LOSS)
    handle = torch_module.register_module_forward_hook(lambda *given: None)
    try:
        assert not modules.unchanged()
        assert not TorchModules(mlp(), LOSS).alone
    finally:
        handle.remove()
    assert modules.unchanged()


def test_another_default_type() -> None:
    modules = TorchModules(mlp(), LOSS)
    torch.set_default_dtype(torch.float64)
    try:
        assert not modules.unchanged()
    finally:
        torch.set_default_dtype(torch.float32)


def test_torchs_compiler_being_used_elsewhere_is_no_change() -> None:
    @torch.compile(backend="eager")
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    modules = TorchModules(nn.Sequential(nn.Linear(3, 2)), nn.CrossEntropyLoss(reduction="none"))
    assert doubled(torch.ones(2)).tolist() == [2, 2]  # it replaces parts of nn.Module
    assert modules.alone
    assert modules.unchanged()
