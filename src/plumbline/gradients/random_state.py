"""The random generators' state, to run a model again with the same random numbers.

A model draws (dropout) from the generator of the device that it lies on, which need not be the
CPU's.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class RandomState:
    """The state, when it is built, of the CPU's generator and of those of ``tensors``' devices."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._cpu = torch.get_rng_state()
        devices = {tensor.device for tensor in tensors}
        self._others = {
            device: torch.get_device_module(device).get_rng_state(*_named(device))
            for device in devices
            if device.type not in ("cpu", "meta")
        }

    def restore(self) -> None:
        """Puts the generators back."""
        torch.set_rng_state(self._cpu)
        for device, state in self._others.items():
            torch.get_device_module(device).set_rng_state(state, *_named(device))


def _named(device: torch.device) -> tuple[torch.device, ...]:
    """The device as torch's functions for it take it: Apple's have one, and no argument."""
    return () if device.type == "mps" else (device,)
