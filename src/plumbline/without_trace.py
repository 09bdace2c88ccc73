"""Evaluating a model without leaving a trace in random generators or training modes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from plumbline.record_random import kept_generators


@contextmanager
def no_trace(model: nn.Module) -> Iterator[None]:
    """Restores the random generators of torch, NumPy and Python when the block ends."""
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with kept_generators(), torch.random.fork_rng(devices):
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model into evaluation mode, and each module back into its own mode at the end."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
