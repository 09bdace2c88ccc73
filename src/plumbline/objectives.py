"""Losses and optimizers by name or reference.

A loss is a function of output and target that gives one loss per record. An optimizer is a class of
``torch.optim``'s kind, or a function of the parameters that makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn, optim
from torch.nn import functional

from plumbline.checks import check_positive
from plumbline.registry import Registry, options_of

Loss = Callable[..., Tensor]
OwnLoss = TypeVar("OwnLoss", bound=Loss)
OptimizerMaker = Callable[..., optim.Optimizer]
OwnOptimizer = TypeVar("OwnOptimizer", bound=OptimizerMaker)

LOSSES: Registry[Loss | type[Any]] = Registry("loss")
OPTIMIZERS: Registry[OptimizerMaker] = Registry("optimizer")


def loss(function: OwnLoss) -> OwnLoss:
    """Registers a loss under the name of its function."""
    LOSSES.add(function.__name__, function)
    return function


def optimizer(make: OwnOptimizer) -> OwnOptimizer:
    """Registers an optimizer under the name of its class or function, in lower case."""
    OPTIMIZERS.add(make.__name__.lower(), make)
    return make


LOSSES.add("cross_entropy", nn.CrossEntropyLoss(reduction="none"))
for _kind in (optim.SGD, optim.Adam, optim.AdamW, optim.NAdam):
    optimizer(_kind)


@loss
def binary_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Of one logit per record, ``[B]`` or ``[B, 1]``, with targets 0 and 1, ``[B]``."""
    logits = output.reshape(target.shape)
    return functional.binary_cross_entropy_with_logits(logits, target.to(output), reduction="none")


@loss
def mse(output: Tensor, target: Tensor) -> Tensor:
    """The squared error; of classes, ``[B]``, that to their one-hot rows, ``[B, classes]``."""
    return _by_record(_errors(output, target).square())


class Huber:
    """The squared error up to ``delta``, and beyond it one that grows as the absolute error does.

    A target that is a number is mapped to [-1, 1], so that 0.1 is a twentieth of its range. Of
    classes it is that to their one-hot rows.
    """

    def __init__(self, delta: float = 0.1) -> None:
        check_positive("delta", delta)
        self._delta = delta

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss for each record, ``[B]``."""
        size = _errors(output, target).abs()
        near, delta = size.clamp(max=self._delta), self._delta
        return _by_record(near.square() + 2 * delta * (size - near))


LOSSES.add("huber", Huber)


def _errors(output: Tensor, target: Tensor) -> Tensor:
    if target.dim() < output.dim() and output.shape[-1] > 1:
        target = functional.one_hot(target, output.shape[-1])
    return output.reshape(target.shape) - target


def _by_record(errors: Tensor) -> Tensor:
    return errors.flatten(1).mean(1) if errors.dim() > 1 else errors


def build_loss(found: Any, options: Mapping[str, Any]) -> Loss:
    """A loss: as it is; or, of a class such as torch's or a function with options, what it makes.

    Raises:
        ValueError: If it cannot be called with an output and a target.
    """
    if isinstance(found, type):
        reduces = "reduction" in options_of(found)
        found = found(**{**({"reduction": "none"} if reduces else {}), **options})
    elif options:
        found = found(**options)
    if not callable(found):
        raise ValueError(
            f"A loss is a function of output and target, and {found!r} is not a function."
        )
    made: Loss = found
    return made
