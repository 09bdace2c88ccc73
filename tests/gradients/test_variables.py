"""Variables beside a model: what is walked again, and what is said of a change."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from plumbline.gradients import attribute_walk
from plumbline.gradients.attribute_walk import Walk
from plumbline.gradients.variables import Place, Variables, _Names


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the variables that were walked."""
    names: list[str] = []
    real = attribute_walk.Walk.variable

    def variable(walk: Walk, value: Any, name: str, path: Any) -> None:
        names.append(name)
        real(walk, value, name, path)

    monkeypatch.setattr(attribute_walk.Walk, "variable", variable)
    return names


def space(**names: Any) -> tuple[dict[str, Any], _Names]:
    """Some variables, looked at once."""
    found = _Names(names, Place("the Python module script"))
    assert found.look(Walk(), naming=False) is not None  # they are all new
    return names, found


def test_only_what_may_have_changed_is_walked_again(walked: list[str]) -> None:
    iterator = iter([1, 2, 3])
    names, found = space(kept=[1, 2], step=0, cursor=iterator, config={"rate": 0.5})
    del walked[:]
    names["step"] = 1
    change = found.look(Walk(), naming=True)
    # Where an iterator is can only be told by walking it.
    assert walked == ["step", "step", "cursor"]  # the first a second time, for its path
    assert change == (("step", ("the Python module script", ())), False)
    del walked[:]
    assert found.look(Walk(), naming=True) is None
    assert walked == ["cursor"]
    next(iterator)
    assert found.look(Walk(), naming=True) is not None


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda names: names["held"].append(3), "held"),
        (lambda names: names["space"].inside.update(a=2), "a inside space"),
        (lambda names: names["rng"].manual_seed(2), "rng"),
        (lambda names: names["tensor"].add_(1), "tensor"),
        (lambda names: names.pop("held"), "held"),
        (lambda names: names.update(new=1), "new"),
    ],
    ids=["list", "object", "generator", "tensor", "gone", "new"],
)
def test_a_change_is_seen_and_named(change: Any, path: str) -> None:
    names, found = space(
        held=[1, 2],
        space=SimpleNamespace(inside={"a": 1}),
        rng=torch.Generator().manual_seed(1),
        tensor=torch.zeros(3),
    )
    assert found.untouched()
    change(names)
    assert not found.untouched()
    changed = found.look(Walk(), naming=True)
    assert changed is not None
    where, keys = changed[0], []
    while where:
        keys.append(str(where[0]))
        where = where[1]
    assert " ".join(keys) == f"{path} the Python module script"
    assert changed[1] == (path == "rng")
    assert found.untouched()
    assert found.look(Walk(), naming=True) is None


class Own(nn.Module):
    """A model of this file's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


OWN = Own()
WEIGHT = OWN.layer.weight


def test_a_variable_that_is_a_trained_weight_may_be_trained() -> None:
    known = Walk()
    known.module(OWN)
    known.end()
    variables = Variables(OWN, [])
    assert variables.changed(known)  # all is new
    with torch.no_grad():
        WEIGHT.add_(1.0)
    assert not variables.changed(known)
