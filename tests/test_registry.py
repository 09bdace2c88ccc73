"""Parts by name and by reference: what is found, and what is said of what is not."""

from __future__ import annotations

from typing import TypedDict, Unpack

import pytest

from plumbline.registry import (
    Registry,
    UnknownPart,
    WrongOptions,
    check_options,
    imported,
    options_of,
)


@pytest.fixture
def networks() -> Registry[type]:
    made: Registry[type] = Registry("network")
    made.add("small-net", int)
    made.add("large-net", float)
    return made


def test_names_with_either_dash(networks: Registry[type]) -> None:
    assert networks["small-net"] is networks["small_net"] is networks.find("small_net") is int
    assert "small_net" in networks
    assert 3 not in networks
    assert list(networks) == ["small-net", "large-net"]
    assert networks.name_of(float) == "large-net"
    assert networks.name_of(str) is None


def test_a_name_is_taken_once(networks: Registry[type]) -> None:
    networks.add("small-net", int)
    with pytest.raises(ValueError, match=r"a network called 'small-net' already \(builtins:int\)"):
        networks.add("small_net", str)


def test_the_nearest_name_is_given(networks: Registry[type]) -> None:
    with pytest.raises(UnknownPart, match=r"no network 'smal-net'\. Did you mean 'small-net'\?"):
        networks.find("smal-net")
    with pytest.raises(UnknownPart, match="There are large-net, small-net"):
        networks.find("x")


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("no_such_package.rules:Soft", "'no_such_package.rules' cannot be imported"),
        ("outside_parts.no_such:Soft", "'outside_parts.no_such' cannot be imported"),
        ("outside_parts.rules:Sof", "no attribute of 'outside_parts.rules' called 'Sof'.*'Soft'"),
        ("outside_parts.rules:", "no attribute of 'outside_parts.rules' called ''"),
    ],
)
def test_a_reference_that_leads_nowhere(reference: str, complaint: str) -> None:
    with pytest.raises(UnknownPart, match=complaint):
        imported(reference, "clipping")


@pytest.mark.usefixtures("outside")
def test_a_reference_leads_on(networks: Registry[type]) -> None:
    assert networks.find("outside_parts.rules:Soft.__name__") == "Soft"


def test_options_are_checked_before_the_call() -> None:
    def make(size: int, *, width: int = 3) -> int:
        raise AssertionError("it was called")

    check_options("The part", make, {"size": 1})
    with pytest.raises(WrongOptions, match=r"The part: there is no option 'widht'.*'width'"):
        check_options("The part", make, {"size": 1, "widht": 2})
    with pytest.raises(WrongOptions, match="The part needs the option 'size'"):
        check_options("The part", make, {})
    check_options("The part", lambda **anything: None, {"whatever": 2})


class Sizes(TypedDict, total=False):
    width: int
    depth: int


def built(name: str, **sizes: Unpack[Sizes]) -> None:
    """Takes its options from a dictionary's type."""


def test_options_of_an_unpacked_dictionary() -> None:
    assert list(options_of(built)) == ["name", "width", "depth"]
    check_options("The network", built, {"name": "a", "width": 3})
    with pytest.raises(WrongOptions, match=r"no option 'dept'\. Did you mean 'depth'"):
        check_options("The network", built, {"name": "a", "dept": 3})
    with pytest.raises(WrongOptions, match="The network needs the option 'name'"):
        check_options("The network", built, {"width": 3})
