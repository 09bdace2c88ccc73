"""Networks from outside, by registration and by reference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from plumbline.models import MODELS, accepts, build
from plumbline.registry import UnknownPart, WrongOptions

pytestmark = pytest.mark.usefixtures("outside")
REFERENCE = "outside_parts.networks:small_net"


def test_a_network_by_reference() -> None:
    network = build(REFERENCE, features=3)
    assert network(torch.zeros(2, 3)).shape == (2, 2)
    assert accepts(REFERENCE, "hidden")
    assert not accepts(REFERENCE, "width")
    assert isinstance(build("torch.nn:Identity"), nn.Identity)


def test_a_network_by_registration() -> None:
    import outside_parts.networks

    assert MODELS["small-net"] is outside_parts.networks.small_net
    assert build("small_net", hidden=5)[0].out_features == 5  # type: ignore[index,union-attr]


def test_a_network_that_is_built_already_is_copied() -> None:
    one, other = (build("outside_parts.networks:READY") for _ in range(2))
    assert torch.equal(one[0].weight, other[0].weight)  # type: ignore[index,union-attr,arg-type]
    assert one is not other
    assert not accepts("outside_parts.networks:READY", "hidden")


@pytest.mark.parametrize(
    ("reference", "options", "complaint"),
    [
        ("outside_parts.networks:not_a_network", {}, "it builds 3, which is not a torch.nn.Module"),
        ("outside_parts.rules:NOT_A_PART", {}, "is of type float"),
        (REFERENCE, {"hiden": 3}, "no option 'hiden'. Did you mean 'hidden'"),
        ("outside_parts.nowhere:net", {}, "cannot be imported"),
    ],
)
def test_wrong_references(reference: str, options: dict[str, int], complaint: str) -> None:
    with pytest.raises((UnknownPart, WrongOptions), match=complaint):
        build(reference, **options)
