"""A model's trainable parameters along a run: the same ones to the end, and updated together."""

from __future__ import annotations

import random
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


_LOOKED_AT = 4


class WeightsMoved(UserWarning):
    """Something beside the run has changed its weights, and epsilon may not cover that."""


class OwnWeights:
    """Tells whether anything but the run has changed its weights.

    Torch's counters tell, but not of changes through ``.data``. For these, on the processor, a few
    numbers drawn after each step are compared: a change of most weights is found at once.

    Args:
        weights: The trainable parameters.
        fixed: What leaves with them and no step changes: frozen parameters and buffers.

    Attributes:
        times: After how many steps a next one found them changed, in all sessions of the run.
    """

    def __init__(self, weights: Iterable[nn.Parameter], fixed: Iterable[Tensor] = ()) -> None:
        self.times = 0
        self._weights = [weight for weight in weights if weight.numel()]
        # Tensors made in inference mode have no counter, and outside of it cannot be changed.
        self._fixed = [tensor for tensor in fixed if not tensor.is_inference()]
        self._places: list[tuple[nn.Parameter, int]] = []
        self._left: tuple[list[int], list[str]] | None = None
        self._dice = random.Random(0)  # where to look is no secret, and no run depends on it

    def leave(self) -> None:
        """Takes the weights as they are now for the run's own."""
        near = [weight for weight in self._weights if weight.device.type == "cpu"]
        drawn = self._dice.choices(near, k=_LOOKED_AT) if near else []
        self._places = [(weight, self._dice.randrange(weight.numel())) for weight in drawn]
        self._left = self._now()

    @property
    def moved(self) -> bool:
        """Whether they were changed since the run left them."""
        return self._left not in (None, self._now())

    def _now(self) -> tuple[list[int], list[str]]:
        versions = [one._version for one in (*self._weights, *self._fixed)]
        # As text, in which a NaN is equal to itself.
        return versions, [float(w.detach().reshape(-1)[i]).hex() for w, i in self._places]

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
        "The weights or buffers are not as the last step left them: something beside private.step "
        "has changed them, such as an optimizer of its own in a hook. If it looked at private "
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
