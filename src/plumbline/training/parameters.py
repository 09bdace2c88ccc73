"""A model's trainable parameters along a run: the same ones to the end, and updated together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def require_same(
    before: Mapping[str, nn.Parameter], now: Mapping[str, nn.Parameter], *, sharded: bool
) -> None:
    """Refuses other parameters than those that the run began with.

    To be called before anything is charged: the noise and the method's state are for these alone.

    Raises:
        RuntimeError: Naming the parameter.
    """
    changed = [
        name
        for name in (*before, *now)
        if name not in now
        or name not in before
        or (not sharded and now[name] is not before[name])  # a shard is another object each time
    ]
    if changed:
        raise RuntimeError(
            f"The trainable parameters are not those that the run began with: '{changed[0]}' was "
            "frozen, freed or replaced. A run trains the same parameters to its end: put them "
            "back, or plan a new run with a budget of its own."
        )


class WeightsMoved(UserWarning):
    """Something beside the run has changed its weights, and epsilon may not cover that."""


class OwnWeights:
    """Tells, by torch's counters, whether anything but the run has changed its weights.

    Changes through ``.data`` are not counted.

    Args:
        weights: The trainable parameters.
    """

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        self._weights = list(weights)
        self._left: list[int] | None = None

    def leave(self) -> None:
        """Takes the weights as they are now for the run's own."""
        self._left = [weight._version for weight in self._weights]

    @property
    def moved(self) -> bool:
        """Whether they were changed since the run left them."""
        return self._left not in (None, [weight._version for weight in self._weights])

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Around code that changes the weights and restores them."""
        moved = self.moved
        try:
            yield
        finally:
            if not moved and self._left is not None:
                self.leave()


def warn_of_moved(stacklevel: int) -> None:
    """Warns of weights that were changed beside the run."""
    warnings.warn(
        "The weights are not as the last step left them: something beside private.step has "
        "changed them, such as an optimizer of its own in a hook. If it looked at private "
        "records, epsilon does not cover that; the statement says so.",
        WeightsMoved,
        stacklevel=stacklevel,
    )


def apply(
    update: Mapping[str, Tensor],
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Lets the optimizer step on an update; every ``.grad`` is put back as it was."""
    optimized = [p for group in optimizer.param_groups for p in group["params"]]
    held = [(parameter, parameter.grad) for parameter in (*optimized, *parameters.values())]
    try:
        for parameter, gradient in held:
            if gradient is not None:  # one that was frozen may still have one of its own
                parameter.grad = None
        for name, parameter in parameters.items():
            own = update[name]
            parameter.grad = own if own.dtype == parameter.dtype else own.to(parameter.dtype)
        optimizer.step()
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient
