"""Test records with groups, as the tests of fairness need them."""

import numpy as np

from plumbline.fairness import Outcomes


def random_outcomes(
    records: int = 400, groups: int = 3, classes: int = 2, seed: int = 0
) -> tuple[Outcomes, np.ndarray]:
    """Outcomes that are right more often than not, and a group for each record."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=records)
    right = generator.random(records) < 0.7
    predictions = np.where(right, labels, generator.integers(classes, size=records))
    losses = generator.exponential(size=records)
    scores = generator.uniform(1 / classes, 1, size=records)
    return Outcomes(labels, predictions, losses, scores), generator.integers(groups, size=records)


def with_accuracy(correct: dict[int, int], size: int, losses: dict[int, float]) -> Outcomes:
    """`size` records of each group, of which `correct` are right; all have their group's loss.

    The groups are in order: the first `size` records are of the first group, and so on.
    """
    right = [np.arange(size) < count for count in correct.values()]
    labels = np.tile(np.arange(size) % 2, len(correct))
    predictions = np.where(np.concatenate(right), labels, 1 - labels)
    return Outcomes(labels, predictions, np.repeat(list(losses.values()), size))
