"""Metrics by group: against fairlearn, and of groups that are small, empty or unknown."""

import json
import math
from typing import Any

import fairlearn.metrics
import numpy as np
import pytest
import sklearn.metrics
import torch

from plumbline.fairness import METRICS, Outcomes, Undefined, evaluate, to_json
from tests.fairness.examples import random_outcomes


def test_by_hand() -> None:
    labels = [1, 1, 0, 0, 1, 0, 0, 0]
    predictions = [1, 0, 0, 0, 1, 1, 1, 0]
    report = evaluate(
        Outcomes(labels, predictions, [1, 2, 3, 4, 5, 6, 7, 8]),
        sensitive_features=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
        names=("male", "female"),
        minimum_size=4,
    )
    assert report.sizes == {"male": 4, "female": 4}
    assert report.too_small == ()
    assert report.overall["accuracy"] == 5 / 8
    assert report.metric("accuracy") == {"male": 3 / 4, "female": 2 / 4}
    assert report.metric("loss") == {"male": 2.5, "female": 6.5}
    assert report.metric("selection rate") == {"male": 1 / 4, "female": 3 / 4}
    assert report.metric("true positive rate") == {"male": 1 / 2, "female": 1.0}
    assert report.metric("false positive rate") == {"male": 0.0, "female": 2 / 3}
    assert report.difference()["accuracy"].value == 1 / 4
    assert report.difference()["accuracy"].lowest == "female"
    assert report.demographic_parity_difference == 1 / 2
    assert report.equalised_odds_difference == 2 / 3
    assert report.worst["accuracy"] == report.worst["loss"] == "female"
    assert report.worst["true positive rate"] == "male"
    assert report.worst["false positive rate"] == "female"
    assert isinstance(report.worst["selection rate"], Undefined)
    assert report.value("male", "loss") == 2.5
    assert report.value("nobody", "loss") == Undefined("the group has no records")


def test_against_fairlearn_and_scikit_learn() -> None:
    outcomes, groups = random_outcomes(1000, groups=4)
    report = evaluate(outcomes, sensitive_features=groups)
    y, p = outcomes.labels, outcomes.predictions
    frame = fairlearn.metrics.MetricFrame(
        metrics={
            "accuracy": sklearn.metrics.accuracy_score,
            "balanced accuracy": sklearn.metrics.balanced_accuracy_score,
            "selection rate": fairlearn.metrics.selection_rate,
            "true positive rate": fairlearn.metrics.true_positive_rate,
            "false positive rate": fairlearn.metrics.false_positive_rate,
        },
        y_true=y,
        y_pred=p,
        sensitive_features=groups,
    )
    differences = report.difference()
    for name in frame.overall.index:
        assert report.overall[name] == pytest.approx(frame.overall[name], rel=1e-14)
        for group in range(4):
            own = report.by_group[str(group)][name]
            assert own == pytest.approx(frame.by_group.loc[group, name], rel=1e-14)
        assert differences[name].value == pytest.approx(frame.difference()[name], rel=1e-12)
        best = {"false positive rate": frame.group_max()}.get(name, frame.group_min())
        if name != "selection rate":
            worst = report.worst[name]
            assert isinstance(worst, str)
            assert report.by_group[worst][name] == pytest.approx(best[name], rel=1e-14)
    parity = fairlearn.metrics.demographic_parity_difference(y, p, sensitive_features=groups)
    odds = fairlearn.metrics.equalized_odds_difference(y, p, sensitive_features=groups)
    assert report.demographic_parity_difference == pytest.approx(parity, rel=1e-12)
    assert report.equalised_odds_difference == pytest.approx(odds, rel=1e-12)


def test_intersections_against_fairlearn() -> None:
    outcomes, sex = random_outcomes(groups=2, seed=1)
    race = random_outcomes(groups=3, seed=2)[1]
    report = evaluate(outcomes, sensitive_features={"sex": sex, "race": race})
    frame = fairlearn.metrics.MetricFrame(
        metrics=sklearn.metrics.accuracy_score,
        y_true=outcomes.labels,
        y_pred=outcomes.predictions,
        sensitive_features={"sex": sex, "race": race},
    )
    assert len(report.by_group) == 6
    for (one, other), accuracy in frame.by_group.items():
        assert report.by_group[f"sex={one} & race={other}"]["accuracy"] == accuracy


def test_a_group_that_is_empty_a_group_of_one_class_and_a_group_of_one() -> None:
    report = evaluate(
        Outcomes([1, 0, 1, 1, 0], [1, 0, 1, 0, 1], [1] * 5, [0.9] * 5),
        sensitive_features=[0, 0, 1, 1, 3],
        names=("both", "one class", "empty", "single"),
        minimum_size=2,
    )
    assert report.by_group["one class"]["true positive rate"] == 0.5
    assert report.by_group["one class"]["false positive rate"] == Undefined(
        "no record has a negative label"
    )
    assert report.by_group["one class"]["balanced accuracy"] == Undefined("no record has label 0")
    assert set(report.by_group["empty"].values()) == {Undefined("the group has no records")}
    assert report.by_group["single"]["accuracy"] == 0.0
    assert report.too_small == ("empty", "single")
    gap = report.difference()["accuracy"]
    assert (gap.value, gap.left_out) == (0.5, ("empty", "single"))
    assert report.worst["accuracy"] == "one class"
    assert isinstance(report.equalised_odds_difference, Undefined)


def test_records_of_unknown_group_stay_in() -> None:
    outcomes, groups = random_outcomes(200, groups=2)
    values: list[Any] = groups.tolist()
    values[:60:2] = [None] * 30
    values[1:11:2] = [-1] * 5
    values[50:60] = [math.nan] * 10
    report = evaluate(outcomes, sensitive_features=values)
    unknown = np.array([value not in (0, 1) for value in values])
    assert tuple(report.by_group) == ("0", "1", "unknown")
    assert report.sizes["unknown"] == unknown.sum()
    assert sum(report.sizes.values()) == 200
    assert report.overall["accuracy"] == outcomes.correct.mean()
    assert report.by_group["unknown"]["accuracy"] == outcomes.correct[unknown].mean()
    assert "unknown" in report.judged


def test_small_groups_are_shown_and_not_judged() -> None:
    sizes = {"a": 20, "b": 19, "c": 20}
    outcomes = Outcomes([0] * 59, [0] * 15 + [1] * (5 + 19) + [0] * 20)
    report = evaluate(outcomes, sensitive_features=["a"] * 20 + ["b"] * 19 + ["c"] * 20)
    assert report.sizes == sizes
    assert report.too_small == ("b",)
    assert report.by_group["b"]["accuracy"] == 0.0
    assert report.difference()["accuracy"].value == 0.25
    assert report.worst["accuracy"] == "a"
    everyone = evaluate(outcomes, sensitive_features=["a"] * 20 + ["b"] * 39, minimum_size=1)
    assert everyone.too_small == ()


def test_many_classes() -> None:
    outcomes, groups = random_outcomes(600, groups=2, classes=5)
    report = evaluate(outcomes, sensitive_features=groups)
    for name in ("accuracy", "loss", "balanced accuracy", "calibration error"):
        assert isinstance(report.difference()[name].value, float)
    assert isinstance(report.demographic_parity_difference, Undefined)
    # As on MNIST in paper 004, where the groups are the classes.
    by_class = evaluate(outcomes, sensitive_features=outcomes.labels)
    recalls = sklearn.metrics.recall_score(outcomes.labels, outcomes.predictions, average=None)
    np.testing.assert_allclose(list(by_class.metric("accuracy").values()), recalls, rtol=1e-14)
    assert isinstance(by_class.by_group["0"]["balanced accuracy"], Undefined)


def test_a_report_is_json() -> None:
    outcomes, groups = random_outcomes(100, groups=2)
    report = evaluate(outcomes, sensitive_features=groups, names=("a", "b", "empty"))
    values = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert set(values["overall"]) == {metric.name for metric in METRICS}
    assert values["by_group"]["empty"]["loss"] == "undefined: the group has no records"
    assert values["too_small"] == ["empty"]
    assert values["difference"]["accuracy"]["value"] == report.difference()["accuracy"].value
    assert "not covered by epsilon" in values["privacy"]


def test_bad_arguments_are_refused() -> None:
    outcomes = Outcomes([0, 1], [0, 1])
    with pytest.raises(ValueError, match="minimum_size is 0"):
        evaluate(outcomes, sensitive_features=[0, 1], minimum_size=0)
    with pytest.raises(ValueError, match="has 3 values for 2 test records"):
        evaluate(outcomes, sensitive_features=[0, 1, 1])
