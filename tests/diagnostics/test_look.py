"""Diagnostics by name: one decorator, one registry, and functions from anywhere."""

import sys
import types
from collections.abc import Iterator

import pytest
import torch

from plumbline.diagnostics import DIAGNOSTICS, Look, Probe, diagnostic
from plumbline.diagnostics.look import found
from plumbline.registry import UnknownPart
from tests.training.small import RECORDS, private


@pytest.fixture
def outside() -> Iterator[types.ModuleType]:
    """A module of somebody else, with a diagnostic."""
    module = types.ModuleType("outside_of_plumbline")

    def loudest(look: Look) -> dict[str, float]:
        return {"norm": float(look.sample.norms.max())}

    loudest.__module__ = module.__name__
    module.loudest, module.number = loudest, 3  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_the_papers_figures_can_all_be_named() -> None:
    own = {
        name: one
        for name, one in DIAGNOSTICS.items()
        if one.make.__module__.startswith("plumbline.")
    }
    assert set(own) == {
        *("bias", "bias_by_batch_size", "errors", "norms", "symmetry", "progress"),
        *("sampling_noise", "under_averaging", "over_iterates", "ascent", "successive_cosines"),
        "adjacent_batches",
        *("hessian", "estimated_sharpness", "noise_bound", "spectrum", "density", "landscape"),
        *("interpolation", "excessive_risk", "excessive_risk_100", "risk_bounds"),
    }
    ends = {name for name, one in own.items() if one.when == "end"}
    assert ends == {"spectrum", "density", "landscape", "interpolation"}


def test_a_function_of_ones_own_is_registered_under_its_name() -> None:
    @diagnostic(when="end")
    def depth(look: Look) -> float:
        return 2.0

    try:
        name, one = found("depth")
        assert (name, one.when, one.make) == ("depth", "end", depth)
        assert found(depth) == (name, one)
        with pytest.raises(ValueError, match="called 'bias' already"):

            @diagnostic
            def bias(look: Look) -> float:
                return 1.0

    finally:
        del DIAGNOSTICS._parts["depth"]


def test_one_from_outside_is_found_by_reference(outside: types.ModuleType) -> None:
    probe = Probe(every=2, records=8, measure=["bias", "outside_of_plumbline:loudest"])
    private().fit([probe], progress=False)
    assert probe.readings[-1].results["loudest"]["norm"] > 0
    with pytest.raises(UnknownPart, match="is not a function of a look: 3"):
        found("outside_of_plumbline:number")


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownPart, match=r"no diagnostic 'bais'\. Did you mean 'bias'\?"):
        Probe(measure=["bais"])
    with pytest.raises(ValueError, match="'bias' is to be measured twice"):
        Probe(measure=["bias", "bias"])
    assert found("bias-by-batch-size")[0] == "bias_by_batch_size"


def test_a_look_knows_groups_by_name_and_users() -> None:
    groups = torch.arange(RECORDS) % 3
    look = Look(private(sensitive_features=groups), torch.tensor([0, 1, 4, 7]), {0: "a", 1: "b"})
    assert {name: own.tolist() for name, own in look.groups.items()} == {
        "a": [True, False, False, False],
        "b": [False, True, True, True],
    }
    assert look.named({0: 1.0, 2: 2.0}) == {"a": 1.0, "2": 2.0}
    assert Look(private(), torch.arange(4)).groups == {}


def test_the_hessian_of_a_users_records() -> None:
    run = private(user_ids=torch.arange(RECORDS) // 4)
    look = Look(run, torch.tensor([2, 5]))
    assert look.hessian().records == 8
    part = look.hessian(torch.tensor([False, True]))
    x, y = run.fetch(torch.arange(20, 24))
    expected = torch.nn.functional.cross_entropy(run.model(x), y)
    assert part.records == 4
    assert part.loss == pytest.approx(float(expected.detach()))
