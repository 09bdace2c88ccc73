"""From probabilities to classes: a threshold, and public weights of classes.

A threshold that is chosen (``"auto"``) is the one of the best balanced accuracy on a third part of
the rows, which are neither trained on nor reported on. Epsilon does not cover that choice, and the
run's statement says so. Weights of classes act on clipped gradients, where a factor of at most one
takes nothing from the guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.metrics import roc_curve
from torch import Tensor, nn

from plumbline.data import Split, Splits
from plumbline.experiments.loading import outputs_of
from plumbline.experiments.recipe import Recipe, RecipeError
from plumbline.registry import unknown

NOT_COVERED = (
    "the threshold, which was chosen on rows as they are that were not trained on; it may tell of "
    "these rows"
)


def check_decision(recipe: Recipe, classes: Sequence[str]) -> None:
    """Refuses a threshold or weights that do not fit the classes, of which there may be none.

    Raises:
        RecipeError: If there are not two classes for a threshold, or a weight is of no class.
    """
    if recipe.threshold is not None and len(classes) != 2:
        what = f"{len(classes)} classes" if classes else "a number as its target"
        raise RecipeError(
            f"A threshold is given, which decides between two classes; the data have {what}. Leave "
            "--threshold out."
        )
    for name in recipe.class_weights:
        if not classes:
            raise RecipeError(
                "Class weights are given, and the target is a number; leave --class-weights out."
            )
        if name not in classes:
            words = unknown("class called", name, list(classes))
            if recipe.data.options.get("from_data"):  # an error names no value of a row
                words = f"there is no class called {name!r} in the training rows."
            raise RecipeError(f"Class weights: {words}")


def threshold_words(threshold: float, classes: Sequence[str], *, chosen: bool) -> str:
    """What a threshold decides, in a sentence."""
    how = (
        " (chosen on rows that are not trained on, which epsilon does not cover)" if chosen else ""
    )
    return f"{classes[1]} is predicted from a probability of {threshold:.3g}{how}."


def record_weights(recipe: Recipe, splits: Splits) -> Tensor | None:
    """Each training record's weight by its class, ``[n]``: the largest is 1. None without any."""
    if not recipe.class_weights:
        return None
    given = [recipe.class_weights.get(name, 1.0) for name in splits.classes]
    weights = torch.tensor(given, dtype=torch.float64)
    return (weights / weights.max())[splits.train.y]


def choose_threshold(model: nn.Module, part: Split) -> float:
    """The probability of the second class from which on predicting it is best on the records.

    Best is the highest balanced accuracy. Where the records have one class only, it is one half.
    """
    outputs, labels = outputs_of(model, part)
    scores, positive = outputs.double().softmax(1)[:, 1].numpy(), labels.numpy() == 1
    if positive.all() or not positive.any() or not np.isfinite(scores).all():
        return 0.5
    false, true, limits = roc_curve(positive, scores)
    best = int(np.argmax(true - false))  # of equally good ones the highest
    if best == 0:  # which is beyond every score
        return 0.5
    # Between two scores, so that rounding in another place moves no record across.
    below = scores[scores < limits[best]]
    return float((limits[best] + below.max()) / 2) if len(below) else float(limits[best])
