"""Evaluating a model without leaving a trace in random generators or training modes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def no_trace(model: nn.Module) -> Iterator[None]:
    """Restores the random generators of torch, NumPy and Python when the block ends."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


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
