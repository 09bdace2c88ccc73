"""Means and standard errors over seeds."""

import json
import math

import pytest
import scipy.stats

from plumbline.fairness import Undefined, across_seeds, estimate, evaluate, to_json
from tests.fairness.examples import random_outcomes


def test_mean_and_standard_error() -> None:
    found = estimate([0.1, 0.2, 0.4, 0.9])
    assert found.mean == pytest.approx(0.4, rel=1e-15)
    # Deviations -0.3, -0.2, 0, 0.5: squares sum to 0.38, over n - 1 = 3, over n = 4.
    assert found.standard_error == pytest.approx(math.sqrt(0.38 / 3 / 4), rel=1e-14)
    assert found.standard_error == pytest.approx(scipy.stats.sem([0.1, 0.2, 0.4, 0.9]), rel=1e-14)
    assert found.per_run == (0.1, 0.2, 0.4, 0.9)


def test_what_has_no_mean_says_why() -> None:
    one = estimate([0.5])
    assert one.mean == 0.5
    assert one.standard_error == Undefined("one run has no standard error")
    missing = Undefined("in run 2 of 3, 4 of 9 losses are not finite")
    found = estimate([0.5, Undefined("4 of 9 losses are not finite"), 1.0])
    assert found.mean == found.standard_error == missing
    assert estimate([math.nan]).per_run == (Undefined("the value is nan"),)
    with pytest.raises(ValueError, match="per_run is empty"):
        estimate([])


def test_across_seeds() -> None:
    runs = [random_outcomes(seed=seed) for seed in range(3)]  # each with records of its own
    reports = [evaluate(outcomes, sensitive_features=groups) for outcomes, groups in runs]
    found = across_seeds(reports)
    assert found.overall["loss"] == estimate([report.overall["loss"] for report in reports])
    own = [report.by_group["2"]["accuracy"] for report in reports]
    assert found.by_group["2"]["accuracy"] == estimate(own)
    gaps = [report.difference()["accuracy"].value for report in reports]
    assert found.difference["accuracy"] == estimate(gaps)
    assert found.sizes["1"] == min(report.sizes["1"] for report in reports)
    assert found.too_small == ()
    assert json.loads(json.dumps(to_json(found)))["sizes"] == found.sizes


def test_a_group_that_one_run_has_not() -> None:
    first, groups = random_outcomes(50, groups=2)
    reports = [
        evaluate(first, sensitive_features=groups),
        evaluate(first, sensitive_features=[*groups.tolist()[:49], None]),
    ]
    found = across_seeds(reports)
    assert found.sizes["unknown"] == 0
    assert found.too_small == ("unknown",)
    missing = Undefined("in run 1 of 2, the group has no records")
    assert found.by_group["unknown"]["accuracy"].mean == missing
    with pytest.raises(ValueError, match="There are no reports"):
        across_seeds([])
