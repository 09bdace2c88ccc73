"""Bootstrap intervals: the metrics themselves, and their coverage where it is known."""

import json

import numpy as np
import pytest
import scipy.stats

from plumbline.fairness import METRICS, Interval, Outcomes, Undefined, bootstrap, evaluate, to_json
from tests.fairness.examples import random_outcomes


def interval(found: Interval | Undefined) -> tuple[float, float]:
    assert isinstance(found, Interval)
    return found.low, found.high


@pytest.mark.parametrize("classes", [2, 4])
def test_intervals_hold_what_evaluate_gives(classes: int) -> None:
    outcomes, groups = random_outcomes(600, groups=2, classes=classes)
    report = evaluate(outcomes, sensitive_features=groups)
    found = bootstrap(
        outcomes, sensitive_features=groups, generator=np.random.default_rng(0), replicates=200
    )
    assert tuple(found.by_group) == tuple(report.by_group)
    for metric in METRICS:
        values = [report.overall[metric.name], *report.metric(metric.name).values()]
        parts = [found.overall, *found.by_group.values()]
        for value, own in zip(values, (part[metric.name] for part in parts), strict=True):
            if isinstance(value, Undefined):
                assert own == value
            else:
                low, high = interval(own)
                # Resampling adds noise to every bin: calibration errors are biased upwards.
                assert low < value < high or metric.name == "calibration error"
                assert 0 < high - low < 0.5


def test_against_a_loop_that_evaluates_every_resample() -> None:
    outcomes, groups = random_outcomes(80, groups=2)
    names = ("a", "b", "empty")
    drawn = np.random.default_rng(7).integers(80, size=(20, 80))
    reports = [
        evaluate(outcomes.take(rows), sensitive_features=groups[rows], names=names)
        for rows in drawn
    ]
    found = bootstrap(
        outcomes,
        sensitive_features=groups,
        names=names,
        generator=np.random.default_rng(7),
        replicates=20,
        level=0.8,
    )
    for metric in METRICS:
        by_group = [[report.by_group[group][metric.name] for report in reports] for group in "ab"]
        gaps = [report.difference()[metric.name].value for report in reports]
        overall = [report.overall[metric.name] for report in reports]
        parts = [found.by_group[group][metric.name] for group in "ab"]
        parts += [found.difference[metric.name], found.overall[metric.name]]
        for values, own in zip([*by_group, gaps, overall], parts, strict=True):
            expected = np.quantile(np.array(values, float), [0.1, 0.9])
            np.testing.assert_allclose(interval(own), expected, rtol=1e-10)
    assert found.too_small == ("empty",)
    assert set(found.by_group["empty"].values()) == {Undefined("the group has no records")}


def test_a_mean_s_interval_is_as_wide_as_theory_says() -> None:
    outcomes, _ = random_outcomes(2000)
    found = bootstrap(
        outcomes,
        sensitive_features=[0] * 2000,
        generator=np.random.default_rng(1),
        replicates=4000,
    )
    low, high = interval(found.overall["loss"])
    assert outcomes.losses is not None
    width = 2 * 1.96 * outcomes.losses.std() / np.sqrt(2000)
    assert high - low == pytest.approx(width, rel=0.06)  # of 4000 resamples' quantiles: about 0.03
    assert isinstance(found.difference["loss"], Undefined)


def test_coverage_of_a_binomial_share() -> None:
    # 200 test sets of 100 records, each right with probability 0.7. The exact coverage of the
    # percentile interval is near 0.94; 200 sets give it to within 0.017 (one standard deviation).
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        right = generator.random(100) < 0.7
        outcomes = Outcomes(np.zeros(100, int), 1 - right)
        found = bootstrap(
            outcomes, sensitive_features=[0] * 100, generator=generator, replicates=300
        )
        low, high = interval(found.overall["accuracy"])
        hits += low <= 0.7 <= high
    assert 0.89 <= hits / 200 <= 0.99


def test_the_interval_of_a_share_is_binomial() -> None:
    outcomes = Outcomes([0] * 50, [0] * 40 + [1] * 10)
    found = bootstrap(
        outcomes, sensitive_features=[0] * 50, generator=np.random.default_rng(0), replicates=5000
    )
    # In a resample the number of right ones is binomial. Its quantiles are whole numbers, and the
    # sampled ones may be one off.
    expected = scipy.stats.binom(50, 0.8).ppf([0.025, 0.975]) / 50
    np.testing.assert_allclose(interval(found.overall["accuracy"]), expected, atol=1 / 50 + 1e-12)


def test_resamples_without_a_positive_have_no_rate() -> None:
    outcomes = Outcomes([1] + [0] * 29, [1] + [0] * 29)
    found = bootstrap(
        outcomes, sensitive_features=["a"] * 30, generator=np.random.default_rng(0)
    ).overall
    rate, accuracy = found["true positive rate"], found["accuracy"]
    assert isinstance(rate, Interval)
    assert isinstance(accuracy, Interval)
    # The only positive is missing in (29/30)^30 = 0.36 of all resamples.
    assert rate.replicates == pytest.approx(638, abs=50)
    assert accuracy.replicates == 1000


def test_the_same_generator_gives_the_same_intervals() -> None:
    outcomes, groups = random_outcomes(100)
    first, second, third = (
        bootstrap(outcomes, sensitive_features=groups, generator=np.random.default_rng(seed))
        for seed in (3, 3, 4)
    )
    assert first == second
    assert first != third
    assert json.loads(json.dumps(to_json(first), allow_nan=False))["level"] == 0.95


def test_bad_arguments_are_refused() -> None:
    outcomes, groups = random_outcomes(100)
    for argument, value in {"replicates": 0, "level": 1.0, "minimum_size": 0}.items():
        with pytest.raises(ValueError, match=f"{argument} is"):
            bootstrap(
                outcomes,
                sensitive_features=groups,
                generator=np.random.default_rng(0),
                **{argument: value},  # type: ignore[arg-type]
            )
