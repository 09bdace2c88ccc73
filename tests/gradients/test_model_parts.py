"""The walk over a model is repeated exactly when something has changed."""

import gc
import weakref

import pytest
import torch
from torch import nn

from plumbline.gradients import capture
from plumbline.gradients.errors import UnsupportedModelError
from plumbline.gradients.model_parts import parts_of


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.again = self.one


def test_names_are_torchs_own() -> None:
    model = nn.ModuleDict({"a": Shared(), "b": nn.Sequential(nn.Linear(3, 2), nn.ReLU())})
    assert list(parts_of(model).parameters) == [name for name, _ in model.named_parameters()]


def test_every_place_of_a_tied_parameter_is_a_holder() -> None:
    places = [name for _, _, name in parts_of(Shared()).holders]
    assert places.count("one.weight") == 2


def test_nothing_changed_means_no_new_walk() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    assert parts_of(model) is parts_of(model)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model[0].weight.requires_grad_(False),
        lambda model: model.eval(),
        lambda model: model.append(nn.Linear(2, 2)),
        lambda model: setattr(model[0], "bias", None),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(2, 2))),
        lambda model: model[0].register_forward_pre_hook(lambda *_: None),
        lambda model: model.__setitem__(1, nn.LayerNorm(2)),
    ],
    ids=["frozen", "mode", "added", "removed", "replaced", "hooked", "swapped"],
)
def test_a_change_is_seen(change: object) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    before = parts_of(model)
    change(model)  # type: ignore[operator]
    assert parts_of(model) is not before


def test_nothing_to_train_is_refused_also_later() -> None:
    model = nn.Linear(2, 2)
    parts_of(model)
    model.requires_grad_(False)
    with pytest.raises(UnsupportedModelError, match="no trainable parameter"):
        parts_of(model)


@pytest.mark.parametrize("make", [lambda: nn.Linear(3, 2), lambda: nn.GRU(3, 2)])
def test_a_model_can_die(make: object) -> None:
    def captured() -> weakref.ref[nn.Module]:
        model = make()  # type: ignore[operator]
        x = torch.randn(4, 5, 3)

        def losses(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
            output = net(x.transpose(0, 1))[0] if isinstance(net, nn.GRU) else net(x)
            return output.square().sum(2).sum(0 if isinstance(net, nn.GRU) else 1)

        capture(model, losses, x).norms()
        return weakref.ref(model)

    gone = captured()
    gc.collect()
    assert gone() is None
