"""From a chunk of data to one loss per record.

The usual loss is a function of output and target (``nn.CrossEntropyLoss(reduction="none")``) on
batches of (inputs..., target) or of named tensors with ``labels``. Anything else is a function of
the model and the batch, marked with ``batch_loss``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from plumbline.transformer_masks import with_own_mask

Loss = Callable[..., Tensor]


class BatchLoss:
    """A loss that runs the model itself: ``function(model, batch)`` gives ``[B]``.

    Where it is made from a loss of output and target, ``run(model, batch)`` gives the two.
    """

    def __init__(
        self,
        function: Callable[[nn.Module, Any], Tensor],
        run: Callable[[nn.Module, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        self._function = function
        self._run = run

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """One loss per record."""
        return self._function(model, batch)

    def outputs(self, model: nn.Module, batch: Any) -> Any:
        """The model's outputs for a batch."""
        if self._run is None:
            raise ValueError(
                "The method needs the model's outputs, which a loss of (model, batch) does not "
                "show. Give a loss of output and target, such as "
                'nn.CrossEntropyLoss(reduction="none").'
            )
        return self._run(model, batch)[0]


def batch_loss(function: Callable[[nn.Module, Any], Tensor]) -> BatchLoss:
    """Marks a function of (model, batch) that returns one loss per record, ``[B]``."""
    return BatchLoss(function)


def per_record(loss: Loss) -> BatchLoss:
    """The loss as a function of model and batch; refuses one that reduces over the batch."""
    if isinstance(loss, BatchLoss):
        return loss
    reduction = getattr(loss, "reduction", "none")
    if reduction != "none":
        raise ValueError(
            f"The loss {type(loss).__name__} has reduction={reduction!r}, which mixes the records. "
            f'Build it with reduction="none": one loss per record is needed.'
        )
    return applied(loss)


def applied(loss: Loss) -> BatchLoss:
    """The loss as a function of model and batch, whether or not it reduces over the batch."""
    if isinstance(loss, BatchLoss):
        return loss

    def run(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, Mapping):
            if "labels" not in batch:
                raise ValueError(
                    f"A batch with the fields {sorted(batch)} has no 'labels' to give to the loss. "
                    "Name the target 'labels', or write the loss as a function of (model, batch) "
                    "and mark it with plumbline.batch_loss."
                )
            named = {name: value for name, value in batch.items() if name != "labels"}
            output = model(**with_own_mask(model, named))
            return getattr(output, "logits", output), batch["labels"]
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise ValueError(
                f"A batch of type {type(batch).__name__} has no target for the loss. Give "
                "(inputs, target), or mark a loss of (model, batch) with plumbline.batch_loss."
            )
        *inputs, target = batch
        return model(*inputs), target

    return BatchLoss(lambda model, batch: _flat(loss(*run(model, batch))), run)


def _flat(values: Tensor) -> Tensor:
    # Squared errors and the like come as [B, outputs]: a record's loss is the mean of its own.
    return values.flatten(1).mean(1) if values.dim() > 1 else values
