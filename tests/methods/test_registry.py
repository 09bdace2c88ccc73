"""Methods by name and by reference, of parts from the package and from outside."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from plumbline.clipping import CLIPPINGS, Flat, GlobalAdapt
from plumbline.evaluation import EVALUATIONS, Bam
from plumbline.methods import METHODS, Method, compose, find, table
from plumbline.registry import UnknownPart, WrongOptions
from plumbline.spaces import LogBetween

pytestmark = pytest.mark.usefixtures("outside")


def named(reference: str, **settings: Any) -> list[str]:
    """The parts of the method that a reference gives, and its name."""
    made = find(reference).make(**settings)
    return [made.name, *(type(one).__name__ for one in (*made.evaluation, made.clipping))]


def test_a_method_by_name() -> None:
    assert find("dpsgd") is find("dpsgd") is METHODS["dpsgd"]
    assert find("global-adapt") is METHODS["global_adapt"]


def test_a_part_of_the_package_by_name() -> None:
    entry = find("GlobalAdapt")
    assert entry.make(clip=0.5).clipping == GlobalAdapt(0.5)
    assert entry.search == GlobalAdapt.search
    assert entry.clips
    rule = find("Bam")
    made = rule.make(radius=0.3, clip=0.2)
    assert (made.evaluation, made.clipping) == ((Bam(0.3),), Flat(0.2))
    assert rule.make().clipping == Flat(1.0)
    assert rule.search == Bam.search
    assert rule.clips
    assert list(inspect.signature(rule.make).parameters) == ["radius", "clip"]


def test_a_part_from_outside_by_reference() -> None:
    entry = find("outside_parts.rules:Soft")
    assert entry.name == "outside_parts.rules:Soft"
    assert entry.search == {"clip": LogBetween(0.1, 2)}
    assert not entry.clips  # it says itself where
    assert named("outside_parts.rules:Soft", clip=0.5) == ["Soft", "Soft"]
    assert entry.make(clip=0.5).clipping.sensitivity == 0.5
    assert named("outside_parts.rules:Halved", share=0.2) == ["Halved + Flat", "Halved", "Flat"]


def test_a_part_from_outside_by_registration() -> None:
    with pytest.raises(UnknownPart):
        find("Soft")
    import outside_parts.rules
    import outside_parts.ways

    assert CLIPPINGS["Soft"] is outside_parts.rules.Soft
    assert EVALUATIONS["Halved"] is outside_parts.rules.Halved
    assert named("Soft") == ["Soft", "Soft"]
    assert named("soft-bam") == ["soft_bam", "Bam", "Soft"]
    assert "soft_bam" in [row.name for row in table()]


def test_a_method_from_outside_by_reference() -> None:
    entry = find("outside_parts.ways:soft_bam")
    assert (entry.source, entry.clips) == ("our own notes, page 3", True)
    assert entry.search == {"radius": LogBetween(0.01, 0.1)}
    assert named("outside_parts.ways:soft_bam", radius=0.1) == ["soft_bam", "Bam", "Soft"]
    plain = find("outside_parts.ways:soft_sgd")
    assert (dict(plain.search), plain.clips) == ({}, True)
    assert plain.make(clip=0.5).clipping.sensitivity == 0.5


def test_a_method_that_is_made_already_is_copied() -> None:
    entry = find("outside_parts.ways:MADE")
    one, other = entry.make(), entry.make()
    assert one == other
    assert one is not other
    assert one.clipping is not other.clipping
    with pytest.raises(WrongOptions, match=r"no option 'clip'\. There are none"):
        entry.make(clip=1.0)


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("dpgd", "no method 'dpgd'. Did you mean 'dpsgd'"),
        ("flat", "Did you mean 'Flat'"),
        ("no_such_package:soft", "'no_such_package' cannot be imported"),
        ("outside_parts.ways:soft_sdg", "Did you mean 'soft_sgd'"),
        ("outside_parts.rules:NOT_A_PART", "is of type float, which is not a method"),
    ],
)
def test_wrong_references(reference: str, complaint: str) -> None:
    with pytest.raises(UnknownPart, match=complaint):
        find(reference)


@pytest.mark.parametrize("reference", ["dpsgd", "Flat", "outside_parts.rules:Soft"])
def test_unknown_settings_are_named(reference: str) -> None:
    with pytest.raises(WrongOptions, match=rf"method '{reference}': .* 'clp'. Did you mean 'clip'"):
        find(reference).make(clp=1.0)


def test_what_is_not_a_method_is_refused_when_it_is_made() -> None:
    with pytest.raises(UnknownPart, match=r"returns Soft\(clip=1.0\), which is not a Method"):
        find("outside_parts.ways:not_a_method").make()


def test_compose_takes_plain_values() -> None:
    made: Method = find("compose").make(
        clipping={"name": "outside_parts.rules:Soft", "clip": 0.5},
        evaluation=[{"name": "Bam", "radius": 0.3}, "outside_parts.rules:Halved"],
    )
    assert made.name == "Bam + Halved + Soft"
    assert made.clipping.sensitivity == 0.5
    assert made.evaluation[0] == Bam(0.3)
    assert compose(evaluation="Bam", clipping="GlobalAdapt") == compose(
        evaluation=Bam(), clipping=GlobalAdapt()
    )
    assert compose(evaluation={"name": "Bam", "radius": 0.1}, clipping="Normalised").passes == 2


@pytest.mark.parametrize(
    ("clipping", "complaint"),
    [
        ("flat", "no clipping 'flat'. Did you mean 'Flat'"),
        ("outside_parts.rules:Halved", "and not a subclass of plumbline.clipping.base.Clipping"),
        ("outside_parts.rules:NOT_A_PART", "it is 3.0, and not a subclass"),
        ({"name": "Flat", "clp": 1.0}, "The clipping 'Flat'.*Did you mean 'clip'"),
        ("Flat", "The clipping 'Flat' needs the option 'clip'"),
    ],
)
def test_wrong_parts_of_a_composition(clipping: Any, complaint: str) -> None:
    with pytest.raises((UnknownPart, WrongOptions), match=complaint):
        compose(clipping=clipping)
