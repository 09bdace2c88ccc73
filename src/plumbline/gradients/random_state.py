"""The state of the random generators, to run a model again with the same random numbers.

A model draws (dropout) from the generator of its own device, which need not be the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class RandomState:
    """The current state of the CPU's generator and of the generators of ``tensors``' devices."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        devices = {tensor.device for tensor in tensors}
        self._others = {
            device: torch.get_device_module(device).get_rng_state(*_named(device))
            for device in devices
            if device.type not in ("cpu", "meta")
        }

    def restore(self) -> None:
        """Restores the generators."""
        torch.set_rng_state(self._cpu)
        for device, state in self._others.items():
            torch.get_device_module(device).set_rng_state(state, *_named(device))


def _named(device: torch.device) -> tuple[torch.device, ...]:
    """The arguments that torch's functions for the device take: Apple's take none."""
    return () if device.type == "mps" else (device,)
