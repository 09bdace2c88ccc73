"""The threshold attack on membership, by group."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from plumbline.auditing import MEASURES, Interval, membership
from plumbline.fairness import Undefined


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_measures_are_those_of_the_roc_curve() -> None:
    draw = np.random.default_rng(1)
    # Rounded, so that there are ties.
    inside, outside = np.round(draw.normal(0, 1, 3000), 2), np.round(draw.normal(1, 1, 2000), 2)
    found = membership(inside, outside, generator=rng(), replicates=20).overall
    truth = np.repeat([1, 0], [3000, 2000])
    scores = -np.concatenate([inside, outside])
    assert found.values["auc"] == pytest.approx(roc_auc_score(truth, scores))
    wrong, right, _ = roc_curve(truth, scores, drop_intermediate=False)
    for rate in (0.001, 0.01, 0.1):
        assert found.values[f"TPR at FPR {rate:g}"] == pytest.approx(right[wrong <= rate].max())
    half = np.argmin(np.abs(right + wrong - 1))
    expected = (1 + right[half] - wrong[half]) / 2
    assert found.values["balanced accuracy"] == pytest.approx(expected)
    assert (found.members, found.others) == (3000, 2000)


def test_intervals_hold_the_truth_and_shrink() -> None:
    draw = np.random.default_rng(2)
    truth = 0.7602  # Phi(1 / sqrt 2)
    widths = []
    for count in (200, 5000):
        found = membership(
            draw.normal(0, 1, count), draw.normal(1, 1, count), generator=rng(), replicates=200
        )
        interval = found.overall.intervals["auc"]
        assert isinstance(interval, Interval)
        assert interval.low < truth < interval.high
        assert interval.replicates == 200
        widths.append(interval.high - interval.low)
    assert widths[1] < widths[0] / 3


def test_groups_are_attacked_each_by_itself() -> None:
    draw = np.random.default_rng(3)
    groups = np.repeat([0, 1, 2], [500, 500, 10])
    inside = draw.normal(0, 1, 1010)
    outside = np.where(groups == 1, 3, 0) + draw.normal(0, 1, 1010)
    found = membership(
        inside,
        outside,
        generator=rng(),
        groups_in=groups,
        groups_out=groups,
        names=("safe", "exposed", "few"),
        replicates=50,
    )
    safe, exposed = found.by_group["safe"].values["auc"], found.by_group["exposed"].values["auc"]
    assert abs(float(safe) - 0.5) < 0.05  # type: ignore[arg-type]
    assert float(exposed) > 0.95  # type: ignore[arg-type]
    assert found.too_small == ("few",)
    low = found.by_group["few"].values["TPR at FPR 0.01"]
    assert isinstance(low, Undefined)
    assert "needs 100 others" in str(low)


def test_a_group_without_others_has_no_value() -> None:
    found = membership(
        [0.0, 1.0, 2.0], [1.0, 2.0], generator=rng(), groups_in=[0, 0, 1], groups_out=[0, 0]
    )
    assert isinstance(found.by_group["1"].values["auc"], Undefined)
    assert set(found.by_group["1"].values) == set(MEASURES)
    assert "1" in found.too_small


def test_infinite_losses_are_losses() -> None:
    found = membership([0.0, math.inf], [1.0, math.inf], generator=rng(), replicates=5)
    assert found.overall.values["auc"] == pytest.approx(0.625)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"losses_in": []}, "losses_in has shape"),
        ({"losses_out": [math.nan]}, "none of them NaN"),
        ({"groups_in": [0, 1]}, "belong together"),
        ({"replicates": 0}, "replicates is 0"),
        ({"level": 1.0}, "level is 1"),
        ({"level": 0.0}, "level is 0"),
        ({"level": -0.5}, "level is -0.5"),
        ({"level": math.nan}, "level is nan"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, object], message: str) -> None:
    given = {"losses_in": [0.0, 1.0], "losses_out": [1.0], "generator": rng(), **settings}
    with pytest.raises(ValueError, match=message):
        membership(**given)  # type: ignore[arg-type]
