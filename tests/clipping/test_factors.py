"""The factors of methods.md, part B, by hand; edge cases; what is refused. (The bound that each
proves is tested on whole methods, in tests/methods/test_contract.py.)
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from plumbline.clipping import (
    CLIPPINGS,
    Automatic,
    Averaged,
    Clipping,
    Flat,
    Global,
    GlobalAdapt,
    GroupBatchNorm,
    Normalised,
    PerGroup,
    PerLayer,
    QuantileAdaptive,
    Unclipped,
)
from plumbline.gradients import PerSampleGradients

NORMS = torch.tensor([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 1e6])


@pytest.mark.parametrize(
    ("clipping", "by_hand"),
    [
        (Flat(0.5), [1, 1, 1, 0.5, 0.25, 0.125, 0.5e-6]),
        (Normalised(), [1e12, 4, 2, 1, 0.5, 0.25, 1e-6]),
        (Automatic(0.5), [50, 0.5 / 0.26, 0.5 / 0.51, 0.5 / 1.01, 0.5 / 2.01, 0.5 / 4.01, 0.5e-6]),
        (QuantileAdaptive(0.5), [1, 1, 1, 0.5, 0.25, 0.125, 0.5e-6]),
        (Global(0.5, 2.0), [0.25, 0.25, 0.25, 0.25, 0.25, 0, 0]),
        (GlobalAdapt(0.5, 2.0), [0.25, 0.25, 0.25, 0.25, 0.25, 0.125, 0.5e-6]),
        # The records of a bucket come added up: the average of two is half of that.
        (Averaged(0.5, 2), [0.5, 0.5, 0.5, 0.5, 0.25, 0.125, 0.5e-6]),
        (GroupBatchNorm(0.5, 2), [0.5, 0.5, 0.5, 0.5, 0.25, 0.125, 0.5e-6]),
        (Unclipped(), [1.0] * 7),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Clipping) else "",
)
def test_the_factors(clipping: Clipping, by_hand: list[float]) -> None:
    torch.testing.assert_close(clipping.factors(NORMS), torch.tensor(by_hand), rtol=1e-6, atol=0)
    assert clipping.factors(NORMS[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("clipping", "sensitivity"),
    [
        (Flat(0.5), 0.5),
        (Normalised(), 1.0),
        (Automatic(0.5), 0.5),
        (PerLayer(0.5), 0.5),
        (PerLayer({"a": 3.0, "b": 4.0}), 5.0),
        (QuantileAdaptive(0.5), 0.5),
        (Global(0.5, 2.0), 0.5),
        (GlobalAdapt(0.5, 2.0), 0.5),
        (PerGroup(0.5), 0.5),
        (Averaged(0.5), 1.0),
        (GroupBatchNorm(0.5), 1.0),
        (Unclipped(), math.inf),
    ],
)
def test_the_sensitivities(clipping: Clipping, sensitivity: float) -> None:
    assert clipping.sensitivity == sensitivity


def test_every_clipping_is_in_the_list() -> None:
    def below(kind: type[Clipping]) -> set[type[Clipping]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    own = {k for k in below(Clipping) if k.__module__.startswith("plumbline.")} - {Clipping}
    assert own == {k for k in CLIPPINGS.values() if k.__module__.startswith("plumbline.")}


def test_a_bound_of_its_clip_is_flat_clipping() -> None:
    torch.testing.assert_close(GlobalAdapt(0.5, 0.5).factors(NORMS), Flat(0.5).factors(NORMS))


def gradients() -> tuple[dict[str, Tensor], PerSampleGradients]:
    draw = torch.Generator().manual_seed(0)
    values = {
        name: torch.randn(5, *shape, generator=draw, dtype=torch.float64)
        for name, shape in {
            "a.weight": (3, 2),
            "a.bias": (3,),
            "b.c.weight": (2,),
            "scale": (),
        }.items()
    }
    values["a.weight"][1] *= 100
    values["scale"][2] = math.nan
    return values, PerSampleGradients.of(values, torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("clip", "bounds"),
    [
        (0.6, dict.fromkeys(["a", "b.c", ""], 0.6 / math.sqrt(3))),
        ({"a": 0.3, "b.c": 0.2, "": 5.0}, {"a": 0.3, "b.c": 0.2, "": 5.0}),
    ],
    ids=["shared", "by layer"],
)
def test_a_layer_is_clipped_by_itself(clip: Any, bounds: dict[str, float]) -> None:
    values, held = gradients()
    finite = torch.tensor([True, True, False, True, True])
    found = PerLayer(clip).clipped_sum(held, held.norms(), finite, None)
    layers = {"a": ["a.weight", "a.bias"], "b.c": ["b.c.weight"], "": ["scale"]}
    for layer, names in layers.items():
        for name in names:
            total = torch.zeros_like(values[name][0])
            for record in (0, 1, 3, 4):
                whole = math.sqrt(sum(float(values[n][record].square().sum()) for n in names))
                total += values[name][record] * min(1.0, bounds[layer] / whole)
            torch.testing.assert_close(found[name], total, rtol=1e-5, atol=1e-8)


def test_bounds_must_be_those_of_the_model() -> None:
    _, held = gradients()
    finite = torch.ones(5, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"they differ in \['', 'b.c', 'd'\]"):
        PerLayer({"a": 1.0, "d": 1.0}).clipped_sum(held, held.norms(), finite, None)


def test_records_that_are_not_finite_take_no_part() -> None:
    values, held = gradients()
    finite = torch.isfinite(held.norms())
    norms = held.norms().masked_fill(~finite, 0)
    found = Flat(0.5).clipped_sum(held, norms, finite, None)
    assert all(bool(torch.isfinite(value).all()) for value in found.values())
    assert not bool(finite[2])
    weights = Flat(0.5).factors(norms).masked_fill(~finite, 0)
    expected = torch.einsum("b,bij->ij", weights, values["a.weight"])
    torch.testing.assert_close(found["a.weight"], expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flat(0), "clip is 0; it must be a positive finite number"),
        (lambda: Flat(math.inf), "clip is inf"),
        (lambda: Flat("1"), "clip is '1'"),  # type: ignore[arg-type]
        (lambda: Flat(True), "clip is True"),
        (lambda: Automatic(1.0, 0.0), "stability is 0.0"),
        (lambda: PerLayer({}), "empty mapping; give a bound for each layer"),
        (lambda: PerLayer({"a": -1.0}), r"clip\['a'\] is -1.0"),
        (lambda: QuantileAdaptive(quantile=1.0), "quantile is 1.0; it must lie between 0 and 1"),
        (lambda: QuantileAdaptive(count_noise=0.0), "count_noise is 0.0"),
        (lambda: Global(1.0, 0.5), "Z is 0.5 and clip is 1.0; Z must be at least clip"),
        (lambda: GlobalAdapt(1.0, 0.5), "Z must be at least clip"),
        (lambda: GlobalAdapt(tolerance=-1.0), "tolerance is -1.0"),
        (lambda: PerGroup(groups=()), "give each group's value once"),
        (lambda: PerGroup(groups=(1, 1)), "give each group's value once"),
        (lambda: PerGroup(form="other"), "form is 'other'"),  # type: ignore[arg-type]
        (lambda: Averaged(size=0), "size is 0; it must be a whole number of at least 1"),
    ],
)
def test_settings_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
