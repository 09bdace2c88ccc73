"""Metrics of numbers, against their definitions and scikit-learn."""

import numpy as np
import pytest

from plumbline.fairness import NumberOutcomes, Undefined, cost_of_reports, evaluate


def test_they_are_the_usual_ones_by_group() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(100, 20, 400)
    predictions = labels + rng.normal(3, 5, 400)
    groups = np.arange(400) % 3
    report = evaluate(NumberOutcomes(labels, predictions), sensitive_features=groups)
    assert set(report.overall) == {"r2", "rmse", "mae", "baseline rmse", "loss"}
    for group in range(3):
        y, found = labels[groups == group], predictions[groups == group]
        own = report.by_group[str(group)]
        errors = y - found
        assert own["rmse"] == pytest.approx(np.sqrt((errors**2).mean()))
        assert own["mae"] == pytest.approx(np.abs(errors).mean())
        assert own["r2"] == pytest.approx(1 - (errors**2).sum() / ((y - y.mean()) ** 2).sum())
        mean_error = np.sqrt(((y - labels.mean()) ** 2).mean())
        assert own["baseline rmse"] == pytest.approx(mean_error)
        assert own["loss"] == pytest.approx((errors**2).mean())


def test_a_model_that_diverged_and_equal_targets_have_no_value() -> None:
    bad = evaluate(
        NumberOutcomes([1.0, 2.0] * 20, [np.nan, np.inf] * 20), sensitive_features=[0] * 40
    )
    assert isinstance(bad.overall["rmse"], Undefined)
    assert isinstance(bad.overall["r2"], Undefined)
    assert isinstance(bad.demographic_parity_difference, Undefined)
    same = evaluate(NumberOutcomes([1.0] * 40, [1.0] * 40), sensitive_features=[0] * 40)
    assert same.overall["r2"] == Undefined("all records have the same target")
    assert same.overall["rmse"] == 0


def test_the_cost_of_privacy_is_the_variance_no_longer_explained() -> None:
    labels = np.linspace(0, 10, 100)
    free, private = (
        evaluate(NumberOutcomes(labels, labels + error), sensitive_features=[0] * 100)
        for error in (0.0, 1.0)
    )
    cost = cost_of_reports([private], [free])
    assert cost.privacy_cost.overall.mean == pytest.approx(1 / labels.var())
    assert cost.excessive_risk.overall.mean == pytest.approx(1.0)
