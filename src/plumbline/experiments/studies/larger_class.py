"""The row that gives a table its scale: always predict the larger class.

Its probabilities are the classes' shares of the training records, so that it has a loss too. A
method that does no better has learned nothing of the features.
"""

from __future__ import annotations

import torch

from plumbline.experiments.loading import load_part
from plumbline.experiments.recipe import Recipe

LARGER_CLASS = "always the larger class"


def larger_class(recipe: Recipe) -> dict[str, list[float]]:
    """Accuracy in points and loss, overall and by group, of each seed; empty without classes."""
    found: dict[str, list[float]] = {}
    part = recipe.data.model_copy(update={"features": None})  # only the classes are looked at
    for seed in recipe.seeds:
        splits = load_part(part, seed)
        if not splits.classes:
            return {}
        counts = torch.bincount(splits.train.y.long(), minlength=len(splits.classes)).double()
        losses, test = -(counts / counts.sum()).log(), splits.test.y.long()
        groups = {"": torch.ones_like(test, dtype=torch.bool)}
        if splits.test.sensitive_features is not None:
            own = splits.test.sensitive_features
            groups |= {f" / {name}": own == place for place, name in enumerate(splits.groups)}
        for name, members in groups.items():
            labels = test[members]
            right = 100 * (labels == counts.argmax()).double().mean()
            found.setdefault(f"accuracy{name}", []).append(float(right))
            found.setdefault(f"loss{name}", []).append(float(losses[labels].mean()))
    return found
