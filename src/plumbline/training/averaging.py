"""Exponential moving average of the weights along a run (De et al. 2022, section 4).

After every step the average moves towards the weights: ``average <- d average + (1 - d) weights``,
where ``d = min(decay, (1 + t) / (10 + t))`` and t counts the steps from 0, so that the weights of
the start are soon forgotten. The average is computed from released weights alone: it costs no
privacy, changes nothing in the training, and the guarantee covers it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """The average of a model's trainable weights; made by ``make_private(averaging=...)``.

    Buffers and frozen weights are not averaged: they are the model's own whenever it is looked at.

    Attributes:
        decay: The largest decay, in [0, 1).
        steps: How many steps are in the average.
        is_applied: Whether the model has the averaged weights just now.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.steps = 0
        self.is_applied = False
        self._model = model
        self._weights = {
            name: _precise(p).clone() for name, p in model.named_parameters() if p.requires_grad
        }

    @torch.no_grad()
    def update(self) -> None:
        """Updates the average with the weights after a step."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for name, parameter in self._model.named_parameters():
            if name in self._weights:
                # A model may have moved to another device since the last step.
                average = self._weights[name] = self._weights[name].to(parameter.device)
                average.mul_(decay).add_(_precise(parameter), alpha=1 - decay)
            elif parameter.requires_grad:  # it was frozen until now
                self._weights[name] = _precise(parameter).clone()
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[nn.Module]:
        """The model with the averaged weights; its own are put back, bit for bit, at the end."""
        self.require_own_weights("average them again")
        parameters = dict(self._model.named_parameters())
        own = {name: parameters[name].detach().clone() for name in self._weights}
        self.is_applied = True
        try:
            _copy(self._weights, parameters)
            yield self._model
        finally:
            _copy(own, parameters)
            self.is_applied = False

    def require_own_weights(self, what: str) -> None:
        """Refuses to do something while the model has the averaged weights."""
        if self.is_applied:
            raise RuntimeError(
                f"The model has the averaged weights just now, inside `with private.averaged()`. "
                f"Leave that block to {what}: its own weights are put back there."
            )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"steps": self.steps, "weights": dict(self._weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state."""
        self.steps = state["steps"]
        self._weights = {name: value.clone() for name, value in state["weights"].items()}


def _precise(parameter: Tensor) -> Tensor:
    # A slow average of bfloat16 weights, kept in bfloat16, would not move at all.
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32))


@torch.no_grad()
def _copy(values: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)
