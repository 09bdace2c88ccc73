"""What is said of a finished run beside its table."""

from typing import Any

import pytest

from plumbline.cli.run_summary import remarks


def report(selected: object = 0.2, **more: Any) -> dict[str, Any]:
    groups: dict[str, Any] = {"f": {}, "m": {}}
    return {"overall": {"selection rate": selected}, "by_group": groups, **more}


@pytest.mark.parametrize("selected", [0.0, 1.0])
def test_a_model_that_tells_nobody_apart(selected: float) -> None:
    (sentence,) = remarks(report(selected))
    assert "the same class" in sentence


@pytest.mark.parametrize("selected", [0.2, None, {"undefined": "ten classes"}])
def test_nothing_is_said_of_other_models(selected: object) -> None:
    assert not list(remarks(report(selected)))


def test_groups_are_compared_and_small_ones_named() -> None:
    found = remarks(report(difference={"accuracy": {"value": 0.031}}, too_small=["m"]))
    assert list(found) == [
        "Accuracy differs by 3.1 points between groups.",
        "Too few records to judge: m.",
    ]
