"""What a table can hope for: more records, fewer parameters and more epsilon are better."""

import math

import pytest

from plumbline.experiments.outlook import Outlook, outlook
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.models import build


def plan(records: int, epsilon: float = 3.0) -> Plan:
    batch = min(records, max(256, records // 40))
    return Budget(epsilon=epsilon, delta=1e-6, epochs=10, expected_batch_size=batch).resolve(
        records
    )


def test_the_ratio_is_its_formula() -> None:
    own = plan(8000)
    found = outlook(own, 8000, columns=10)
    assert found.parameters == {
        "linear model": 22,
        "default network": sum(
            p.numel() for p in build("mlp", features=10, classes=2).parameters()
        ),
    }
    expected = own.noise_multiplier * math.sqrt(22 * 8000) / (256 * math.sqrt(own.steps))
    assert found.ratio["linear model"] == pytest.approx(expected)


def test_more_records_and_more_epsilon_find_more() -> None:
    small, large = outlook(plan(2000), 2000, 10), outlook(plan(2000, 10.0), 2000, 10)
    assert large.category < small.category
    assert large.ratio["linear model"] < small.ratio["linear model"]
    many = outlook(plan(200_000), 200_000, 10)
    assert many.ratio["default network"] < small.ratio["default network"]
    wide = outlook(plan(2000), 2000, 100)
    assert wide.category > small.category


def test_its_words() -> None:
    said = Outlook({"linear model": 22}, {"linear model": 0.1}, category=340, group=3842).words()
    assert "0.1 times what would change had as many other people been in the table" in said[0]
    assert "privacy will hardly be felt" in said[0]
    assert "some 340 training rows" in said[1]
    assert "some 3,800 rows" in said[2]
    (first, *_) = Outlook({"net": 9}, {"net": 3.0}, 1, 1).words()
    assert "privacy will be felt" in first
