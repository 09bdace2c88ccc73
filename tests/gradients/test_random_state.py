"""A model can be run again with the same random numbers, whichever device it draws them on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plumbline.gradients.random_state import RandomState


def test_the_same_numbers_are_drawn_again() -> None:
    state = RandomState([torch.zeros(1)])
    first = torch.rand(3)
    for _ in range(2):
        state.restore()
        assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(("name", "given"), [("cuda:1", ["cuda:1"]), ("mps", [])])
def test_a_devices_own_generator_is_put_back(
    name: str, given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for torch's functions for the device, which takes what they take."""
    calls: list[tuple[Any, ...]] = []

    def get_rng_state(*device: torch.device) -> str:
        calls.append(("get", *map(str, device)))
        return "state"

    def set_rng_state(state: str, *device: torch.device) -> None:
        calls.append(("set", state, *map(str, device)))

    module = SimpleNamespace(get_rng_state=get_rng_state, set_rng_state=set_rng_state)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    tensors = [SimpleNamespace(device=torch.device(where)) for where in (name, "cpu", "meta", name)]

    RandomState(tensors).restore()  # type: ignore[arg-type]

    assert calls == [("get", *given), ("set", "state", *given)]
