"""What privacy costs each group: by hand, and on the published numbers of paper 004."""

import json

import numpy as np
import pytest
import scipy.stats

from plumbline.fairness import (
    Outcomes,
    Undefined,
    cost_of_reports,
    evaluate,
    privacy_cost,
    to_json,
)
from tests.fairness.examples import random_outcomes, with_accuracy

GROUPS = np.repeat([0, 1], 1000)
NAMES = ("M", "F")

# Tables 4 (Adult) and 5 (Dutch) of paper 004: accuracy M, F in percent, pi_M, pi_F, pi_{M,F}; loss
# M, F, R_M, R_F, R_{M,F}. All are means over five seeds.
NONPRIVATE = {"adult": (80.5, 92.2, 0.40, 0.19), "dutch": (79.9, 86.9, 0.499, 0.447)}
PUBLISHED = {
    ("adult", "DPSGD"): (69.9, 88.5, 10.6, 3.6, 6.9, 0.78, 0.40, 0.39, 0.21, 0.17),
    ("adult", "FairLens"): (68.8, 88.5, 11.7, 3.7, 7.9, 0.57, 0.42, 0.18, 0.23, 0.05),
    ("adult", "DPSGD-F"): (78.0, 89.4, 2.5, 2.7, 0.2, 0.49, 0.31, 0.09, 0.12, 0.02),
    ("adult", "Global"): (78.5, 89.9, 2.0, 2.2, 0.2, 0.43, 0.25, 0.04, 0.05, 0.02),
    ("adult", "Global-Adapt"): (80.7, 92.3, -0.1, -0.1, 0.0, 0.39, 0.18, 0.0, 0.0, 0.0),
    ("dutch", "DPSGD"): (76.0, 86.4, 3.8, 0.4, 3.4, 0.520, 0.450, 0.021, 0.003, 0.018),
    ("dutch", "FairLens"): (78.6, 86.9, 1.3, -0.1, 1.4, 0.552, 0.526, 0.053, 0.079, 0.026),
    ("dutch", "DPSGD-F"): (78.9, 86.6, 0.9, 0.3, 0.7, 0.503, 0.447, 0.005, 0.0, 0.005),
    ("dutch", "Global"): (79.0, 86.5, 0.8, 0.4, 0.4, 0.510, 0.460, 0.012, 0.013, 0.002),
    ("dutch", "Global-Adapt"): (79.4, 86.7, 0.4, 0.2, 0.2, 0.504, 0.452, 0.006, 0.005, 0.001),
}
# What is published is rounded: half a unit for each number that goes in, and half for the result.
SLACK = {"adult": (0.05, 0.005), "dutch": (0.05, 0.0005)}


def outcomes(male: float, female: float, loss_male: float, loss_female: float) -> Outcomes:
    """1000 records of each group, at these accuracies in percent (to 0.1) and losses."""
    correct = {0: round(10 * male), 1: round(10 * female)}
    return with_accuracy(correct, 1000, {0: loss_male, 1: loss_female})


@pytest.mark.parametrize(("data", "method"), list(PUBLISHED))
def test_the_published_costs(data: str, method: str) -> None:
    row = PUBLISHED[data, method]
    cost = privacy_cost(
        [outcomes(*row[:2], *row[5:7])],
        [outcomes(*NONPRIVATE[data])],
        sensitive_features=GROUPS,
        names=NAMES,
    )
    unit, loss_unit = SLACK[data]
    pi, risk = cost.privacy_cost, cost.excessive_risk
    for group, published in zip(NAMES, row[2:4], strict=True):
        mean = pi.by_group[group].mean
        assert isinstance(mean, float)
        assert 100 * mean == pytest.approx(published, abs=3 * unit + 1e-9)
    for group, published in zip(NAMES, row[7:9], strict=True):
        assert risk.by_group[group].mean == pytest.approx(published, abs=3 * loss_unit + 1e-9)
    gap = pi.gap.value
    assert isinstance(gap, float)
    assert 100 * gap == pytest.approx(row[4], abs=5 * unit + 1e-9)
    assert risk.gap.value == pytest.approx(row[9], abs=5 * loss_unit + 1e-9)
    if row[4] > 5 * unit:  # otherwise rounding decides who pays more
        assert pi.worst == pi.gap.highest == ("M" if row[2] > row[3] else "F")


def test_by_hand_with_a_run_for_each_seed() -> None:
    private = [outcomes(70, 88, 0.8, 0.5), outcomes(72, 89, 0.6, 0.4), outcomes(68, 90, 0.7, 0.3)]
    nonprivate = [
        outcomes(80, 92, 0.4, 0.2),
        outcomes(81, 92, 0.4, 0.2),
        outcomes(82, 92, 0.4, 0.2),
    ]
    cost = privacy_cost(private, nonprivate, sensitive_features=GROUPS, names=NAMES)
    pi = cost.privacy_cost
    # Paired by seed: 10, 9, 14 and 4, 3, 2 percent; the differences are 6, 6, 12.
    assert pi.by_group["M"].mean == pytest.approx(0.11, rel=1e-12)
    assert pi.by_group["F"].mean == pytest.approx(0.03, rel=1e-12)
    sem = scipy.stats.sem
    assert pi.by_group["M"].standard_error == pytest.approx(sem([0.1, 0.09, 0.14]), rel=1e-9)
    assert pi.gap.value == pytest.approx(0.08, rel=1e-12)
    assert pi.gap.standard_error == pytest.approx(sem([0.06, 0.06, 0.12]), rel=1e-9)
    assert pi.gap.per_run == pytest.approx((0.06, 0.06, 0.12), rel=1e-9)
    assert (pi.gap.highest, pi.gap.lowest, pi.worst) == ("M", "F", "M")
    assert pi.overall.mean == pytest.approx(0.07, rel=1e-12)
    risk = cost.excessive_risk
    assert risk.by_group["M"].mean == pytest.approx(0.3, rel=1e-12)
    assert risk.by_group["F"].mean == pytest.approx(0.2, rel=1e-12)
    assert risk.gap.value == pytest.approx(0.1, rel=1e-12)


def test_one_nonprivate_run_and_several() -> None:
    private = [outcomes(70, 90, 1, 1), outcomes(74, 90, 1, 1), outcomes(72, 90, 1, 1)]
    one = [outcomes(81, 95, 0.5, 0.5)]
    two = [outcomes(80, 94, 0.5, 0.5), outcomes(82, 96, 0.5, 0.5)]
    found = [privacy_cost(private, star, sensitive_features=GROUPS) for star in (one, two)]
    for cost in found:
        pi = cost.privacy_cost.by_group["0"]
        assert pi.per_run == pytest.approx((0.11, 0.07, 0.09), rel=1e-9)
        assert pi.standard_error == pytest.approx(scipy.stats.sem([0.11, 0.07, 0.09]), rel=1e-9)


def test_the_gap_is_that_of_expectations() -> None:
    # One seed favours M and the other F by as much: no group pays more in expectation.
    private = [outcomes(70, 80, 1, 1), outcomes(80, 70, 1, 1)]
    cost = privacy_cost(private, [outcomes(90, 90, 0.5, 0.5)], sensitive_features=GROUPS)
    assert cost.privacy_cost.gap.value == pytest.approx(0.0, abs=1e-12)
    assert cost.privacy_cost.gap.per_run == pytest.approx((0.1, 0.1), rel=1e-9)
    assert cost.privacy_cost.between("0", "1").per_run == pytest.approx((0.1, 0.1), rel=1e-9)


def test_more_than_two_groups() -> None:
    groups = np.repeat([0, 1, 2], 100)
    losses = {0: 1.0, 1: 1.0, 2: 1.0}
    private = [with_accuracy({0: 90, 1: 60, 2: 80}, 100, losses)]
    star = [with_accuracy({0: 95, 1: 85, 2: 97}, 100, losses)]
    pi = privacy_cost(private, star, sensitive_features=groups).privacy_cost
    assert pi.gap.value == pytest.approx(0.25 - 0.05, rel=1e-12)
    assert (pi.gap.highest, pi.gap.lowest) == ("1", "0")
    # As the paper compares 8 with 2 on MNIST.
    assert pi.between("0", "2").mean == pytest.approx(0.12, rel=1e-12)
    assert pi.between("2", "0").mean == pytest.approx(0.12, rel=1e-12)
    with pytest.raises(ValueError, match=r"no group '8'; the groups are \['0', '1', '2'\]"):
        pi.between("0", "8")


def test_small_and_unknown_groups() -> None:
    groups = [0] * 500 + [1] * 489 + [None] * 11
    private, star = random_outcomes(1000, seed=1)[0], random_outcomes(1000, seed=1)[0]
    cost = privacy_cost([private], [star], sensitive_features=groups)
    assert cost.too_small == ("unknown",)
    assert cost.privacy_cost.gap.left_out == ("unknown",)
    assert cost.privacy_cost.by_group["unknown"].mean == 0.0
    assert cost.privacy_cost.gap.standard_error == Undefined("one run has no standard error")


def test_a_run_that_diverged_for_one_group() -> None:
    good = outcomes(70, 90, 1, 1)
    bad = outcomes(70, 90, np.inf, 1)
    cost = privacy_cost([good, bad], [good], sensitive_features=GROUPS, names=NAMES)
    assert cost.excessive_risk.by_group["M"].mean == Undefined(
        "in run 2 of 2, 1000 of 1000 losses are not finite"
    )
    assert isinstance(cost.excessive_risk.gap.value, Undefined)
    assert isinstance(cost.excessive_risk.gap.standard_error, Undefined)
    assert cost.excessive_risk.worst == "F"
    assert isinstance(cost.excessive_risk.between("M", "F").mean, Undefined)
    assert cost.privacy_cost.gap.value == 0.0
    worse = privacy_cost([good] * 3, [good, bad], sensitive_features=GROUPS, names=NAMES)
    assert isinstance(worse.excessive_risk.by_group["M"].mean, Undefined)
    assert worse.excessive_risk.by_group["F"].mean == 0.0


def test_each_seed_may_have_its_own_test_records() -> None:
    runs = [random_outcomes(seed=seed) for seed in range(4)]
    reports = [evaluate(one, sensitive_features=groups) for one, groups in runs]
    cost = cost_of_reports(reports[:2], reports[2:])
    accuracies = [report.by_group["1"]["accuracy"] for report in reports]
    assert all(isinstance(value, float) for value in accuracies)
    a, b, c, d = (float(str(value)) for value in accuracies)
    assert cost.privacy_cost.by_group["1"].per_run == pytest.approx((c - a, d - b), rel=1e-12)
    assert cost.sizes["1"] == min(report.sizes["1"] for report in reports)


def test_the_cost_is_json() -> None:
    cost = privacy_cost(
        [outcomes(70, 90, 1, 1)], [outcomes(80, 92, 0.5, 0.5)], sensitive_features=GROUPS
    )
    values = json.loads(json.dumps(to_json(cost), allow_nan=False))
    assert set(values) == {"privacy_cost", "excessive_risk", "sizes", "too_small", "privacy"}
    assert values["privacy_cost"]["gap"]["value"] == pytest.approx(0.08, rel=1e-12)
    assert values["privacy_cost"]["worst"] == "0"


def test_a_cost_needs_both_kinds_of_run() -> None:
    with pytest.raises(ValueError, match="1 private and 0 non-private"):
        privacy_cost([outcomes(70, 90, 1, 1)], [], sensitive_features=GROUPS)
