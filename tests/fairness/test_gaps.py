"""The largest difference and the worst group, over the groups that are judged."""

import pytest

from plumbline.fairness import Gap, Number, Undefined
from plumbline.fairness.gaps import gap_of, judged_of, too_small_of, worst_of

VALUES: dict[str, Number] = {"a": 0.5, "b": 0.875, "c": Undefined("empty"), "d": 0.0}


def test_the_largest_difference_names_its_groups() -> None:
    assert gap_of(VALUES, ("a", "b", "c", "d")) == Gap(0.875, "b", "d", ("c",))
    assert gap_of(VALUES, ("a", "b")) == Gap(0.375, "b", "a", ("c", "d"))
    assert gap_of({"a": 1.0, "b": 1.0}, ("a", "b")).value == 0.0


@pytest.mark.parametrize("judged", [(), ("a",), ("a", "c")])
def test_a_gap_needs_two_groups(judged: tuple[str, ...]) -> None:
    gap = gap_of(VALUES, judged)
    assert isinstance(gap.value, Undefined)
    assert f"{min(1, len(judged))} of 4 groups" in gap.value.reason
    assert gap.highest is gap.lowest is None


def test_the_worst_group() -> None:
    everyone = ("a", "b", "c", "d")
    assert worst_of(VALUES, everyone, "higher") == "d"
    assert worst_of(VALUES, everyone, "lower") == "b"
    assert worst_of(VALUES, ("a", "b"), "higher") == "a"
    assert worst_of({"a": 1.0, "b": 1.0}, ("a", "b"), "lower") == "a"
    assert isinstance(worst_of(VALUES, everyone, None), Undefined)
    assert isinstance(worst_of(VALUES, ("c",), "lower"), Undefined)


def test_twenty_records_are_enough() -> None:
    sizes = {"a": 20, "b": 19, "c": 0}
    assert judged_of(sizes, 20) == ("a",)
    assert too_small_of(sizes, 20) == ("b", "c")
