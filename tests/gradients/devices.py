"""Where the engine's tests run: every tensor and module that a test builds lies on one device.

A test names no device. ``conftest.py`` makes the ``device`` fixture's the default for each test, so
what a test builds in its body lies there; module-level tables hold shapes, numbers and functions
that build, because they are made before any fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def building_on(device: torch.device) -> Iterator[None]:
    """New tensors and modules lie on ``device``.

    The CPU is the default anyway, and is left so: a default device is a torch function mode, which
    would stand between every torch call and the engine's own ``__torch_function__``.
    """
    if device.type == "cpu":
        yield
        return
    with device:
        yield


def seeded(seed: int) -> torch.Generator:
    """A generator on the device of the test (torch refuses one of another device)."""
    return torch.Generator(torch.get_default_device()).manual_seed(seed)
