"""Bootstrap intervals of the cost of privacy."""

import json

import numpy as np
import pytest

from plumbline.fairness import (
    Interval,
    Outcomes,
    Undefined,
    bootstrap_cost,
    privacy_cost,
    to_json,
)
from tests.fairness.examples import random_outcomes


def runs(seeds: range, losses: bool = True) -> list[Outcomes]:
    """Runs on the same 300 records."""
    labels = random_outcomes(300)[0].labels
    found = []
    for seed in seeds:
        generator = np.random.default_rng(100 + seed)
        predictions = np.where(generator.random(300) < 0.7, labels, 1 - labels)
        found.append(Outcomes(labels, predictions, generator.random(300) if losses else None))
    return found


GROUPS = np.arange(300) % 3
PRIVATE, NONPRIVATE = runs(range(3)), runs(range(10, 12))


def test_against_a_loop_that_computes_every_resample() -> None:
    drawn = np.random.default_rng(5).integers(300, size=(12, 300))
    costs = [
        privacy_cost(
            [run.take(rows) for run in PRIVATE],
            [run.take(rows) for run in NONPRIVATE],
            sensitive_features=GROUPS[rows],
        )
        for rows in drawn
    ]
    found = bootstrap_cost(
        PRIVATE,
        NONPRIVATE,
        sensitive_features=GROUPS,
        generator=np.random.default_rng(5),
        replicates=12,
        level=0.6,
    )
    for group in "012":
        for own, values in (
            (found.privacy_cost[group], [c.privacy_cost.by_group[group].mean for c in costs]),
            (found.excessive_risk[group], [c.excessive_risk.by_group[group].mean for c in costs]),
            (found.privacy_cost_gap, [c.privacy_cost.gap.value for c in costs]),
            (found.excessive_risk_gap, [c.excessive_risk.gap.value for c in costs]),
        ):
            assert isinstance(own, Interval)
            expected = np.quantile(np.array(values, float), [0.2, 0.8])
            np.testing.assert_allclose([own.low, own.high], expected, rtol=1e-9, atol=1e-12)
    assert json.loads(json.dumps(to_json(found), allow_nan=False))["level"] == 0.6


def test_groups_without_a_cost_say_why() -> None:
    broken = runs(range(1))[0]
    assert broken.losses is not None
    broken.losses[:3] = np.inf  # a record of each group
    groups = np.where(GROUPS == 2, 2, 0)
    found = bootstrap_cost(
        [broken, *PRIVATE],
        runs(range(2)),
        sensitive_features=groups,
        names=("a", "empty", "c"),
        generator=np.random.default_rng(0),
        replicates=20,
    )
    assert found.excessive_risk["a"] == Undefined(
        "2 of 200 records have no finite loss in some run"
    )
    assert found.excessive_risk["empty"] == Undefined("the group has no records")
    assert isinstance(found.excessive_risk_gap, Undefined)
    assert isinstance(found.privacy_cost_gap, Interval)
    assert found.too_small == ("empty",)
    without = bootstrap_cost(
        runs(range(1), losses=False),
        NONPRIVATE,
        sensitive_features=groups,
        generator=np.random.default_rng(0),
        replicates=20,
    )
    assert isinstance(without.excessive_risk["0"], Undefined)


def test_runs_that_cannot_be_resampled_together_are_refused() -> None:
    generator = np.random.default_rng(0)
    with pytest.raises(ValueError, match="3 private and 0 non-private"):
        bootstrap_cost(PRIVATE, [], sensitive_features=GROUPS, generator=generator)
    with pytest.raises(ValueError, match="labels differ"):
        bootstrap_cost(
            PRIVATE,
            [random_outcomes(300, seed=9)[0]],
            sensitive_features=GROUPS,
            generator=generator,
        )
