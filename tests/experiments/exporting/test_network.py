"""A network described, and built again from its description."""

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from plumbline import models
from plumbline.experiments.exporting.network import NoProgram, layers_of, program_of, reference_of
from plumbline.experiments.exporting.predict import LAYERS, build

SHARED = nn.Linear(6, 6)
PLAIN = {
    "linear": models.build("linear", features=6, classes=3),
    "mlp": models.build("mlp", features=6, classes=2, hidden=[5, 4]),
    "dutch": models.build("dutch-linear", features=6),
    "names": nn.Sequential(),
    "nested": nn.Sequential(nn.Linear(6, 4, bias=False), nn.Sequential(nn.LayerNorm(4), nn.GELU())),
    "options": nn.Sequential(
        nn.ELU(0.3), nn.LeakyReLU(0.4), nn.GELU("tanh"), nn.Softplus(2.0),
        nn.LayerNorm(6, 0.1, False), nn.Dropout(0.7),
    ),
    "others": nn.Sequential(nn.ReLU(), nn.SELU(), nn.SiLU(), nn.Sigmoid(), nn.Identity()),
    "used twice": nn.Sequential(SHARED, nn.Tanh(), SHARED),
}  # fmt: skip
PLAIN["names"].add_module("first", nn.Linear(6, 2))
PLAIN["names"].add_module("last", nn.Tanh())


@pytest.mark.parametrize("name", PLAIN)
def test_plain_networks_are_built_again(name: str) -> None:
    model = PLAIN[name].eval()
    found = layers_of(model)
    assert found is not None
    built = build(json.loads(json.dumps(found))).eval()
    assert repr(built) == repr(model)
    built.load_state_dict(model.state_dict())
    x = torch.randn(5, 6)
    assert torch.equal(built(x), model(x))


def test_every_layer_of_the_list_is_tried() -> None:
    kinds = {type(part).__name__ for model in PLAIN.values() for part in model.modules()}
    assert set(LAYERS) <= kinds


class Own(nn.Linear):
    """A layer that does more than its class's name says."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda module, args, out: out * 2)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Own(2, 2),
        nn.Sequential(Own(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Conv1d(1, 1, 1)),
        hooked(),
        nn.Sequential(hooked()),
        parametrizations.orthogonal(nn.Linear(2, 2)),
        nn.Linear(2, 2).double(),
        nn.Bilinear(2, 2, 2),
        type("Sequential", (nn.Sequential,), {})(nn.Linear(2, 2)),
        type("Linear", (nn.Linear,), {})(2, 2),
    ],
    ids=lambda one: type(one).__name__,
)
def test_others_are_not_described(model: nn.Module) -> None:
    assert layers_of(model) is None


def test_where_a_network_is_found() -> None:
    assert reference_of("clinic.nets:Net") == "clinic.nets:Net"
    assert reference_of("resnet-9") == "plumbline.models.resnet9:resnet_9"
    assert reference_of("object:Net#01234567") is None


class Branches(nn.Module):
    """What is computed depends on the numbers."""

    def forward(self, x: Any) -> Any:
        return x if bool(x.sum() > 0) else -x


def test_what_torch_cannot_trace_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoProgram, match=r"^torch\.export fails with \w+: ") as error:
        program_of(Branches(), 3)
    assert len(str(error.value)) <= 200
    with pytest.raises(NoProgram, match="the shape of a record is not known"):
        program_of(nn.Linear(3, 2), None)
    assert capfd.readouterr().err == ""
