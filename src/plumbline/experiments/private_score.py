"""What a private selection scores its candidates by: metrics that a record can move by little.

A score is computed from sums over the records held out, to which noise is added. One record more or
less moves these sums by at most 1 in L2 norm:

- loss: each record's log loss, cut off at a public number B, as 1 - loss / B, which is in [0, 1];
- accuracy: the number of right predictions;
- balanced accuracy, macro F1: how many records of each class were predicted to be of which, of
  which a record is in one count.

A record can move other metrics by more: by its rank among all the others (AUC, average precision),
or by its share in a small group or bin (worst group, calibration).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from plumbline.experiments.recipe import RecipeError
from plumbline.fairness import Outcomes
from plumbline.fairness.metrics import ACCURACY, BALANCED, LOSS, MACRO_F1

SCORED = (LOSS, ACCURACY, BALANCED, MACRO_F1)
"""The metrics that can be scored with noise."""
SENSITIVITY = 1.0
"""How far one record moves what is asked."""
_BEYOND = 3.0  # by how much the loss that is cut off exceeds that of guessing
_STEPS = 2**20  # a record's part of a loss is a multiple of their inverse, so that sums are exact


def check_scored(metric: str) -> None:
    """Refuses a metric that a single record can move too far.

    Raises:
        RecipeError: If it is none of ``SCORED``.
    """
    if metric not in SCORED:
        raise RecipeError(
            f"A private selection cannot aim at {metric}: one record can move it by more than "
            f"noise would cover. It can aim at {', '.join(SCORED[:-1])} or {SCORED[-1]} (--metric)."
        )


class PrivateScore:
    """A metric of a candidate, from noisy sums over the records held out.

    Args:
        metric: One of ``SCORED``.
        classes: How many classes there are.
    """

    def __init__(self, metric: str, classes: int) -> None:
        check_scored(metric)
        self.metric, self._classes = metric, classes
        self.most = math.log(classes) + _BEYOND

    @property
    def words(self) -> str:
        """What is asked of the records held out."""
        return {
            LOSS: f"a noisy sum of losses of at most {self.most:.3g}",
            ACCURACY: "a noisy count of right predictions",
        }.get(self.metric, "noisy counts of predictions by class")

    def sums(self, outcomes: Outcomes) -> Tensor:
        """What one record moves by at most ``SENSITIVITY``, float64 ``[sums]``, exact."""
        if self.metric == ACCURACY:
            return torch.tensor([float(outcomes.correct.sum())], dtype=torch.float64)
        if self.metric == LOSS:
            assert outcomes.losses is not None
            kept = np.nan_to_num(outcomes.losses, nan=self.most, posinf=self.most)
            gains = 1 - np.clip(kept, 0.0, self.most) / self.most
            total = int(np.floor(gains * _STEPS).astype(np.int64).sum())
            return torch.tensor([total / _STEPS], dtype=torch.float64)
        places = outcomes.labels * self._classes + outcomes.predictions
        return torch.from_numpy(np.bincount(places, minlength=self._classes**2)).double()

    def value(self, noisy: Tensor, expected: int) -> float:
        """The metric with noise, for so many records held out; of a loss, its negative."""
        if self.metric == ACCURACY:
            return float(noisy) / expected
        if self.metric == LOSS:
            return self.most * (float(noisy) / expected - 1)
        counts = noisy.clamp(min=0.0).reshape(self._classes, self._classes)
        right, there, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
        of = there if self.metric == BALANCED else (there + predicted) / 2
        return float((right / of.clamp(min=1.0)).mean())
