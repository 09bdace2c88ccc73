"""Predicted probabilities beside what came true."""

import numpy as np
from sklearn.calibration import calibration_curve

from plumbline.fairness import Outcomes
from plumbline.fairness.metrics import Task
from plumbline.fairness.reliability import reliability


def test_bins_are_those_of_scikit_learn_by_quantiles() -> None:
    rng = np.random.default_rng(0)
    chances = rng.permutation(np.linspace(0.001, 0.999, 1000))
    labels = (rng.random(1000) < chances**2).astype(int)
    predictions = (chances >= 0.3).astype(int)  # not the more probable class
    scores = np.where(predictions == 1, chances, 1 - chances)
    outcomes = Outcomes(labels, predictions, scores=scores)
    found = reliability(outcomes, Task.of(outcomes))
    observed, predicted = calibration_curve(labels, chances, n_bins=10, strategy="quantile")
    np.testing.assert_allclose([one.predicted for one in found], predicted, atol=0.002)
    np.testing.assert_allclose([one.observed for one in found], observed, atol=0.011)
    assert [one.records for one in found] == [100] * 10


def test_of_many_classes_it_is_the_predicted_one() -> None:
    labels, predictions = [0, 1, 2] * 20, [0, 1, 0] * 20
    outcomes = Outcomes(labels, predictions, scores=[0.5] * 60)
    found = reliability(outcomes, Task.of(outcomes))
    assert len(found) == 3
    assert [one.observed for one in found] == [0.7, 0.65, 0.65]


def test_few_records_and_scores_that_are_none_make_no_bin() -> None:
    few = Outcomes([0, 1] * 5, [0, 1] * 5, scores=[0.9] * 10)
    assert reliability(few, Task.of(few)) == ()
    broken = Outcomes([0, 1] * 30, [0, 1] * 30, scores=[float("nan")] * 60)
    assert reliability(broken, Task.of(broken)) == ()
