"""The one ``device`` fixture decides where the engine's tests run, although no test names it."""

import pytest
import torch
from torch import nn

from tests.gradients.devices import building_on, seeded
from tests.gradients.harness import assert_matches_loop


def test_what_a_test_builds_lies_on_the_fixtures_device(device: torch.device) -> None:
    assert torch.get_default_device().type == device.type
    assert torch.randn(2).device.type == device.type
    assert nn.Linear(2, 2).weight.device.type == device.type
    assert seeded(0).device.type == device.type


def test_what_a_capture_gives_lies_there_too(device: torch.device) -> None:
    found = assert_matches_loop(nn.Linear(4, 3), torch.randn(5, 4))
    results = [*found.materialise().values(), *found.sum().values(), found.norms(), found.losses]
    assert {result.device.type for result in results} == {device.type}


def test_another_device_is_obeyed(device: torch.device) -> None:
    # The tests above cannot fail on the CPU, which is the default whatever the fixture does.
    with building_on(torch.device("meta")):
        assert torch.randn(2).device.type == "meta"
        assert nn.Linear(2, 2).weight.device.type == "meta"
    assert torch.randn(2).device.type == device.type


@pytest.mark.parametrize(("name", "modes"), [("cpu", 0), ("meta", 1)])
def test_the_cpu_needs_no_function_mode(name: str, modes: int) -> None:
    before = torch._C._len_torch_function_stack()
    with building_on(torch.device(name)):
        assert torch._C._len_torch_function_stack() == before + modes
