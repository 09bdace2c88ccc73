"""Data sets by name, by registration and by reference."""

from __future__ import annotations

import pytest

from plumbline.data import DATASETS, load
from plumbline.data.base import FILES
from plumbline.registry import UnknownPart, WrongOptions

pytestmark = pytest.mark.usefixtures("outside")


def test_by_registration() -> None:
    import outside_parts.tables

    from plumbline.data import base

    assert DATASETS["our-patients"] is outside_parts.tables.our_patients
    assert len(load("our_patients", records=30).train) == 30
    assert base.FILES["our-patients"] == ()
    assert "our-patients" not in FILES  # which were taken before


def test_by_reference() -> None:
    splits = load("outside_parts.tables:our_patients", records=30)
    assert (len(splits.train), len(splits.test)) == (30, 80)
    assert splits.name == "our-patients"
    assert load("outside_parts.tables:PATIENTS").name == "our-patients"


def test_other_forms_are_converted() -> None:
    splits = load("outside_parts.tables:tensors", records=50, test_fraction=0.1, groups=["m", "f"])
    assert (len(splits.train), len(splits.test)) == (45, 5)
    assert (splits.name, splits.groups) == ("tensors", ("m", "f"))
    splits = load("outside_parts.tables:two_parts")
    assert (len(splits.train), len(splits.test)) == (60, 20)
    splits = load("outside_parts.tables:frame", target="ill", sensitive="sex", from_data=True)
    flagged = ("first", "second", "sex=f", "sex=m", "sex (other)")
    assert tuple(name for name in splits.features if "(missing)" not in name) == flagged
    assert len(splits.features) == len(flagged) + 3
    assert (splits.classes, splits.groups) == (("no", "yes"), ("f", "m"))


@pytest.mark.parametrize(
    ("reference", "options", "complaint"),
    [
        ("adlt", {}, "no data set 'adlt'. Did you mean 'adult'"),
        ("outside_parts.nowhere:frame", {}, "cannot be imported"),
        ("outside_parts.tables:tensors", {"recods": 3}, "no option 'recods'.*'records'"),
        ("outside_parts.tables:our_patients", {"target": "y"}, "no option 'target'"),
        ("outside_parts.tables:PATIENTS", {"seed": 1}, "no option 'seed'. There are none"),
    ],
)
def test_wrong_references(reference: str, options: dict[str, object], complaint: str) -> None:
    with pytest.raises((UnknownPart, WrongOptions), match=complaint):
        load(reference, **options)


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match="Data of type float has no length"):
        load("outside_parts.rules:NOT_A_PART")
