"""The loss that a model of transformers computes itself, for one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from plumbline.transformer_masks import with_own_mask


def own_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss that a model computes from ``labels``, for each record alone, ``[B]``."""
    rows = len(next(iter(batch.values())))
    if rows == 1:
        output = model(**with_own_mask(model, dict(batch)))
        loss: Tensor = output["loss"] if isinstance(output, dict) else output[0]
        return loss.reshape(1)
    alone = ({name: value[i : i + 1] for name, value in batch.items()} for i in range(rows))
    return torch.cat([own_loss(model, one) for one in alone])


def settle_problem_type(model: Any, record: Callable[[], Mapping[str, Any]]) -> None:
    """Decides what a classifier's loss is, as it would at its first batch.

    It would write that into its configuration, and a model may not change as it sees records.

    Args:
        model: The model.
        record: Gives a record; only the type of its labels is looked at.
    """
    own = model.get_base_model() if hasattr(model, "get_base_model") else model
    config: Any = getattr(own, "config", None)
    if not type(own).__name__.endswith("Classification"):
        return
    if getattr(config, "problem_type", "unused") is None:
        labels = record().get("labels")
        if labels is None:
            raise ValueError(
                "The records have no 'labels', from which the model computes its loss. Name the "
                "target so in train_dataset, or give PrivateTrainer a loss= of (model, batch)."
            )
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.is_floating_point():
            config.problem_type = "multi_label_classification"
        else:
            config.problem_type = "single_label_classification"
