"""Spaces map the unit interval onto values, and every method's space gives methods that work."""

import pytest

from plumbline.methods import METHODS, method
from plumbline.spaces import Between, LogBetween, OneOf


def test_places() -> None:
    assert Between(1.0, 3.0).at(0.25) == 1.5
    assert LogBetween(0.01, 100.0).at(0.5) == pytest.approx(1.0)
    assert [OneOf((2, 4, 8)).at(place) for place in (0.0, 0.34, 0.999999, 1.0)] == [2, 4, 8, 8]


def test_a_space_of_logarithms_must_be_positive() -> None:
    with pytest.raises(ValueError, match="two positive numbers"):
        LogBetween(0.0, 1.0)


@pytest.mark.parametrize("entry", METHODS.values(), ids=lambda entry: entry.name)
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_every_corner_of_a_space_makes_a_method(entry: object, place: float) -> None:
    values = {name: space.at(place) for name, space in entry.search.items()}  # type: ignore[attr-defined]
    made = entry.make(**{**entry.example(), **values})  # type: ignore[attr-defined]
    assert made.name == entry.name  # type: ignore[attr-defined]


def test_a_space_for_a_setting_that_is_not_there_is_refused() -> None:
    with pytest.raises(TypeError, match="has no setting radius"):
        method("nowhere", search={"radius": Between(0, 1)})(lambda clip: None)  # type: ignore[arg-type,return-value]


def test_a_bound_that_only_scales_is_not_tuned() -> None:
    assert METHODS["dpsgd"].clips
    assert not METHODS["global_adapt"].clips  # the learning rate does the same
    assert not METHODS["nonprivate"].clips  # it has none
