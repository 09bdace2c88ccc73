"""The engine's tests run on the ``device`` fixture's device, with each layer's first kernel."""

from collections.abc import Iterator

import pytest
import torch

from plumbline.gradients import KERNELS
from tests.gradients.devices import building_on


@pytest.fixture(autouse=True)
def _fixed_kernels() -> Iterator[None]:
    """Nothing is measured: a choice made by a clock would not be the same in every run."""
    KERNELS.forget()
    KERNELS.measure = False
    yield
    KERNELS.forget()


@pytest.fixture(autouse=True)
def _everything_on_the_device(device: torch.device) -> Iterator[None]:
    """What a test builds lies on the device, and no test has to say so."""
    with building_on(device):
        yield
