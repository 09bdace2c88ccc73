"""Every metric against hand-computed values and against scikit-learn's and fairlearn's own."""

import math

import fairlearn.metrics
import numpy as np
import pytest
import sklearn.metrics

from plumbline.fairness import METRICS, Number, Outcomes, Undefined
from plumbline.fairness.metrics import Task
from tests.fairness.examples import random_outcomes

BY_NAME = {metric.name: metric for metric in METRICS}


def value(name: str, outcomes: Outcomes, positive: int = 1) -> Number:
    return BY_NAME[name](outcomes, Task.of(outcomes, positive))


def reason(name: str, outcomes: Outcomes, positive: int = 1) -> str:
    found = value(name, outcomes, positive)
    assert isinstance(found, Undefined)
    return found.reason


def test_by_hand() -> None:
    #                   TP TP FN FP TN TN TN FP
    outcomes = Outcomes(
        [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0, 1], [1.0, 2, 3, 4, 5, 6, 7, 8]
    )
    assert value("accuracy", outcomes) == 5 / 8
    assert value("loss", outcomes) == 36 / 8
    assert value("balanced accuracy", outcomes) == pytest.approx((2 / 3 + 3 / 5) / 2, rel=1e-15)
    assert value("selection rate", outcomes) == 4 / 8
    assert value("true positive rate", outcomes) == 2 / 3
    assert value("false positive rate", outcomes) == 2 / 5
    assert value("true positive rate", outcomes, positive=0) == 3 / 5


def test_calibration_error_by_hand() -> None:
    # (0.6, 0.667]: one right, one wrong, mean score 0.64; (0.933, 1]: two right, mean score 0.975.
    outcomes = Outcomes([0, 0, 0, 0], [0, 1, 0, 0], scores=[0.62, 0.66, 0.95, 1.0])
    expected = 2 / 4 * abs(0.5 - 0.64) + 2 / 4 * abs(1 - 0.975)
    assert value("calibration error", outcomes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("scores", "error"),
    [
        pytest.param([0.2, 0.2000001], 0.8, id="an-edge-is-in-the-bin-below"),
        pytest.param([0.0, 0.01], 0.995, id="zero-is-in-the-first-bin"),
    ],
)
def test_calibration_bins(scores: list[float], error: float) -> None:
    # Both records are right: the bins' errors have one sign, so splitting them changes nothing...
    assert value("calibration error", Outcomes([0, 0], [0, 0], scores=scores)) == pytest.approx(
        error, abs=1e-6
    )


def test_calibration_errors_of_a_bin_cancel_and_those_of_two_do_not() -> None:
    # ... and with one right and one wrong it shows which bin they are in.
    one_bin = Outcomes([0, 0], [0, 1], scores=[0.5, 0.5])
    two_bins = Outcomes([0, 0], [0, 1], scores=[0.2, 0.2000001])
    assert value("calibration error", one_bin) == 0.0
    assert value("calibration error", two_bins) == pytest.approx((0.8 + 0.2) / 2, abs=1e-6)


def test_calibration_against_a_loop_over_bins() -> None:
    outcomes, _ = random_outcomes(1000, classes=4, seed=3)
    assert outcomes.scores is not None
    expected = 0.0
    for low in range(15):
        members = (outcomes.scores > low / 15) & (outcomes.scores <= (low + 1) / 15)
        if members.any():
            gap = outcomes.correct[members].mean() - outcomes.scores[members].mean()
            expected += members.mean() * abs(gap)
    assert value("calibration error", outcomes) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_against_scikit_learn(classes: int) -> None:
    outcomes, _ = random_outcomes(classes=classes, seed=classes)
    y, p = outcomes.labels, outcomes.predictions
    assert value("accuracy", outcomes) == sklearn.metrics.accuracy_score(y, p)
    assert value("balanced accuracy", outcomes) == pytest.approx(
        sklearn.metrics.balanced_accuracy_score(y, p), rel=1e-14
    )
    assert value("loss", outcomes) == pytest.approx(np.mean(outcomes.losses), rel=1e-14)


def test_against_fairlearn() -> None:
    outcomes, _ = random_outcomes(seed=8)
    y, p = outcomes.labels, outcomes.predictions
    assert value("selection rate", outcomes) == fairlearn.metrics.selection_rate(y, p)
    assert value("true positive rate", outcomes) == fairlearn.metrics.true_positive_rate(y, p)
    assert value("false positive rate", outcomes) == fairlearn.metrics.false_positive_rate(y, p)


def test_one_class_has_one_rate() -> None:
    positives, negatives = Outcomes([1, 1], [1, 0]), Outcomes([0, 0], [0, 0])
    assert value("true positive rate", positives) == 0.5
    assert reason("false positive rate", positives) == "no record has a negative label"
    assert value("false positive rate", negatives) == 0.0
    assert reason("true positive rate", negatives) == "no record has a positive label"
    assert value("selection rate", negatives) == 0.0


def test_a_group_that_lacks_a_class_has_no_balanced_accuracy() -> None:
    everyone = Outcomes([0, 1, 2], [0, 1, 1])
    some = everyone.take(np.array([0, 1]))
    found = BY_NAME["balanced accuracy"](some, Task.of(everyone))
    assert found == Undefined("no record has label 2")


def test_a_class_that_is_only_predicted_is_no_class_of_balanced_accuracy() -> None:
    assert value("balanced accuracy", Outcomes([0, 1], [0, 7])) == 0.5


@pytest.mark.parametrize("name", ["selection rate", "true positive rate", "false positive rate"])
def test_rates_need_two_classes(name: str) -> None:
    many = Outcomes(range(12), range(12))
    assert "the classes are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..." in reason(name, many)
    assert "the classes are 0, 2" in reason(name, Outcomes([0, 2], [0, 2]))
    assert "the classes are 0, 1, 2" in reason(name, Outcomes([0, 1], [0, 2]))
    assert value(name, Outcomes([0, 2, 2, 0], [0, 2, 0, 2]), positive=2) == 0.5


def test_no_losses_no_scores() -> None:
    outcomes = Outcomes([0, 1], [0, 1])
    assert reason("loss", outcomes) == "no losses were given"
    assert reason("calibration error", outcomes) == "no scores were given"


def test_a_diverged_model_has_no_loss() -> None:
    outcomes = Outcomes([0, 1, 1], [0, 1, 0], [math.nan, math.inf, 1.0], [math.nan, 0.5, 0.5])
    assert reason("loss", outcomes) == "2 of 3 losses are not finite"
    assert reason("calibration error", outcomes) == "1 of 3 scores are not finite"
    assert value("accuracy", outcomes) == 2 / 3
    huge = Outcomes([0, 1], [0, 1], [1e308, 1e308])
    assert reason("loss", huge) == "it is too large for a number"
