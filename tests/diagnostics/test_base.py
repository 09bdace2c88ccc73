"""The sample: means against dense gradients, bad records left out, and results without NaN."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from plumbline import diagnostics as dg
from plumbline.clipping import (
    Automatic,
    Averaged,
    Clipping,
    Flat,
    Global,
    GlobalAdapt,
    Normalised,
    PerGroup,
    PerLayer,
    QuantileAdaptive,
    Unclipped,
)
from plumbline.diagnostics.base import added, cosine, finite_or, norm
from plumbline.diagnostics.sampling_noise import deviations
from tests.diagnostics.problems import (
    BAD,
    assert_plain,
    assert_undefined,
    clipped,
    dense,
    flat,
    generator,
    network,
    normal,
    rows,
)

SAMPLED: dict[str, Callable[[dg.Sample], Any]] = {
    "bias": dg.bias,
    "error parts": dg.error_parts,
    "bias by size": lambda sample: dg.bias_by_batch_size(sample, [1, 2, 6], generator()),
    "norms": dg.norms,
    "symmetry": dg.symmetry,
    "projections": lambda sample: dg.projections(sample, generator(), 2),
    "sampling noise": dg.sampling_noise,
    "averaging": lambda sample: dg.under_averaging(sample, 2, generator()),
    "iterates": lambda sample: dg.over_iterates(sample, [sample.gradients] * 2),
    "no iterates": lambda sample: dg.over_iterates(sample, []),
    "deviations": deviations,
    "ascent": dg.ascent_directions,
    "ascent after a step": lambda sample: dg.ascent_directions(
        sample, {"weight": torch.ones(3).double()}
    ),
    "ascent after nothing": lambda sample: dg.ascent_directions(
        sample, {"weight": torch.zeros(3).double()}
    ),
    "ascent after NaN": lambda sample: dg.ascent_directions(
        sample, {"weight": torch.full((3,), math.nan).double()}
    ),
}
"""Every diagnostic of a sample."""

CLIPPINGS: list[Clipping] = [
    Flat(0.7),
    Normalised(),
    Automatic(0.7),
    PerLayer(0.7),
    QuantileAdaptive(0.7),
    Global(0.7, 2.0),
    GlobalAdapt(0.7, 2.0),
    PerGroup(0.7),
    Averaged(0.7, 2),
    Unclipped(),
]


def named(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_means_are_those_of_dense_gradients(dtype: torch.dtype) -> None:
    sample = network(dtype=dtype).sample(Flat(0.5))
    gradients = dense(sample)
    mean = gradients.mean(0)
    tolerance = (
        {"rtol": 1e-9, "atol": 0} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-7}
    )
    torch.testing.assert_close(flat(sample.mean), mean, **tolerance)
    torch.testing.assert_close(
        flat(sample.clipped_mean), clipped(gradients, 0.5).mean(0), **tolerance
    )
    torch.testing.assert_close(sample.along, gradients @ mean, **tolerance)
    torch.testing.assert_close(sample.norms.double(), gradients.norm(dim=1), **tolerance)
    assert sample.dimensions == gradients.shape[1]
    assert sample.size == sample.records == 24


def test_clipped_mean_does_not_depend_on_the_expected_size() -> None:
    gradients = normal(10, 4)
    usual = flat(rows(gradients).clipped_mean)
    assert torch.equal(flat(rows(gradients, expected_size=1000).clipped_mean), usual)


def test_clippings_scale_as_their_factors_say() -> None:
    gradients, groups = normal(12, 5), torch.arange(12) % 2
    for clipping in CLIPPINGS:
        if isinstance(clipping, PerLayer | Averaged):
            continue  # no factor of a record's own
        sample = rows(gradients, clipping, groups=groups)
        factors = clipping.factors(gradients.norm(dim=1), groups).double()
        torch.testing.assert_close(flat(sample.clipped_mean), (factors @ gradients) / 12)
    one_layer = flat(rows(gradients, PerLayer(0.7)).clipped_mean)
    torch.testing.assert_close(one_layer, flat(rows(gradients, Flat(0.7)).clipped_mean))


def test_the_units_are_averages_where_the_run_clips_averages() -> None:
    averages = normal(20, 5) + 0.3
    wide = rows(averages, Averaged(1e6, 4))
    torch.testing.assert_close(flat(wide.clipped_mean), averages.mean(0))
    found = flat(rows(averages, Averaged(1.0, 4)).clipped_mean)
    torch.testing.assert_close(found, clipped(averages, 1.0).mean(0))
    # Of 100 records in 20 buckets, of which a run expects 25: sums are divided by a constant.
    drawn = dg.Sample(rows(averages).gradients, Averaged(1.0, 4), drawn=100)
    torch.testing.assert_close(flat(drawn.clipped_mean), found * 20 / 25)
    torch.testing.assert_close(flat(drawn.mean), averages.sum(0) / 25)


def test_the_bias_is_to_the_plain_gradient() -> None:
    gradients, moved = normal(12, 4), normal(12, 4, seed=1) + 0.5
    sample = dataclasses.replace(rows(moved, Flat(0.7)), plain_sample=rows(gradients, Unclipped()))
    expected = clipped(moved, 0.7).mean(0) - gradients.mean(0)
    assert dg.bias(sample).norm == pytest.approx(float(expected.norm()))
    assert dg.error_parts(sample).bias == pytest.approx(float(expected.norm()) ** 2)
    assert dg.norms(sample).largest == pytest.approx(float(moved.norm(dim=1).max()))
    assert dg.bias(sample).gradient_norm == pytest.approx(float(gradients.mean(0).norm()))
    assert dg.ascent_directions(sample) == dg.ascent_directions(rows(gradients))
    some = torch.arange(12) < 5
    part = clipped(moved[:5], 0.7).mean(0) - gradients[:5].mean(0)
    assert dg.bias(sample.of(some)).norm == pytest.approx(float(part.norm()))


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        (Flat(1.0), [0, 0, 1, 1]),
        (QuantileAdaptive(1.0), [0, 0, 1, 1]),
        (GlobalAdapt(1.0, 2.0), [0, 0, 0, 1]),
        (GlobalAdapt(1.0, 50.0), [0, 0, 0, 0]),
        (Global(1.0, 2.0), [0, 0, 0, 1]),
        (Averaged(1.0, 4), [0, 0, 1, 1]),
        (PerLayer(1.0), [0, 0, 1, 1]),
        (Automatic(1.0), [0, 1, 1, 1]),
        (Unclipped(), [0, 0, 0, 0]),
    ],
    ids=named,
)
def test_clipped_means_scaled_down_further_than_others(
    clipping: Clipping, expected: list[int]
) -> None:
    sample = rows(torch.tensor([[0.0], [1.0], [1.5], [4.0]]).double(), clipping)
    assert isinstance(sample.clipped, torch.Tensor)
    assert sample.clipped.int().tolist() == expected
    assert dg.norms(sample).clipped == pytest.approx(sum(expected) / 4)


def test_a_group_has_its_own_bound_and_a_normalised_record_has_none() -> None:
    gradients = torch.tensor([[1.5], [1.5], [2.5], [2.5]]).double()
    clipping = PerGroup(1.0)
    clipping.bounds = [1.0, 2.0]
    sample = rows(gradients, clipping, groups=torch.tensor([0, 1, 0, 1]))
    assert dg.norms(sample).clipped_by_group == {0: 1.0, 1: 0.5}
    normalised = dg.norms(rows(gradients, Normalised(), groups=torch.tensor([0, 1, 0, 1])))
    assert_undefined(normalised.clipped, "every record is scaled to length one")
    assert_undefined(normalised.clipped_by_group[0], "every record is scaled to length one")


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=named)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_records_that_are_not_finite_are_left_out_of_every_number(
    clipping: Clipping, value: float
) -> None:
    gradients, groups = normal(30, 3), torch.arange(30) % 2
    settings = {"noise_multiplier": 1.0, "expected_size": 50}
    clean = rows(gradients, clipping, groups=groups, **settings)
    at = torch.tensor([0, 7, 7, 30])
    spoilt = torch.full((4, 3), value).double()
    spoilt[1:3, 0] = 1.0
    places = torch.cat([torch.arange(30), at - 0.5]).argsort()
    mixed = torch.cat([gradients, spoilt])[places]
    bad = rows(mixed, clipping, groups=torch.cat([groups, torch.tensor([0, 1, 0, 1])])[places])
    bad = dataclasses.replace(bad, **settings)
    assert bad.used == 30
    for name, diagnose in SAMPLED.items():
        if name in ("averaging", "bias by size"):
            continue  # these draw by a record's place
        expected, found = dg.to_json(diagnose(clean)), dg.to_json(diagnose(bad))
        if name == "norms":
            assert found.pop("not_finite") == 4
            assert expected.pop("not_finite") == 0
        assert_alike(found, expected, name)


def assert_alike(found: Any, expected: Any, where: str) -> None:
    """Equal up to the order of sums."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_alike(found[key], value, f"{where}, {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other, where)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), where
    else:
        assert found == expected, where


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_undefined_and_never_nan(case: str) -> None:
    for diagnose in SAMPLED.values():
        assert_plain(diagnose(BAD[case]()))


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=named)
def test_results_are_json_whatever_the_clipping(clipping: Clipping) -> None:
    sample = rows(normal(8, 3), clipping, groups=torch.arange(8) % 2, noise_multiplier=1.0)
    for diagnose in SAMPLED.values():
        assert_plain(diagnose(sample))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_what_rounding_leaves_of_gradients_that_cancel_has_no_direction(dtype: torch.dtype) -> None:
    gradients = (normal(40, 3) / 3).to(dtype)
    around = rows(torch.cat([gradients, -2 * gradients, gradients]))
    assert dg.bias(around).gradient_norm == 0
    # Opposite gradients of different lengths cancel once they are clipped.
    apart = dg.bias(rows(torch.cat([3 * gradients, -5 * gradients]), Flat(0.01)))
    assert apart.gradient_norm > 0.01
    assert apart.clipped_norm == 0
    assert_undefined(apart.cosine, "zero")
    # A small mean is no rounding.
    small = rows(torch.cat([gradients, 1e-4 - gradients]))
    assert dg.bias(small).gradient_norm == pytest.approx(0.5e-4 * 3**0.5, rel=1e-2)


@pytest.mark.parametrize(
    ("case", "reason"),
    [("no records", "no records"), ("no record is finite", "no record has a finite gradient")],
)
def test_reasons_are_said(case: str, reason: str) -> None:
    sample = BAD[case]()
    for result in (dg.bias(sample), dg.error_parts(sample)):
        for value in vars(result).values():
            assert_undefined(value, reason)
    assert_undefined(dg.norms(sample).largest, reason)
    assert_undefined(dg.symmetry(sample).bias, reason)
    assert_undefined(dg.sampling_noise(sample).tau, reason)
    assert_undefined(dg.ascent_directions(sample).bam, reason)


def test_a_part_of_a_sample() -> None:
    gradients = normal(6, 3)
    sample = rows(gradients, groups=torch.arange(6), expected_size=100)
    part = sample.of(torch.tensor([True, False, True, False, False, True]))
    assert torch.equal(dense(part), gradients[[0, 2, 5]])
    assert part.groups is not None
    assert part.groups.tolist() == [0, 2, 5]
    assert part.size == 3


def test_vectors_by_name() -> None:
    first = {"a": torch.tensor([3.0]), "b": torch.tensor([[0.0, 4.0]])}
    second = {"a": torch.tensor([1.0]), "b": torch.tensor([[0.0, 0.0]])}
    assert norm(first) == 5.0
    assert cosine(first, second) == pytest.approx(0.6)
    assert cosine(first, first) == 1.0
    # In float32 this difference would be zero.
    near = {"a": torch.tensor([1.0 + 2**-20]), "b": second["b"]}
    assert norm(added(near, second, -1.0 + 2**-30)) == pytest.approx(2**-20 + 2**-30, rel=1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_cosine_with_what_is_not_finite_is_undefined(value: float) -> None:
    vector = {"a": torch.tensor([1.0, value])}
    assert_undefined(cosine(vector, {"a": torch.ones(2)}), "not finite")
    assert_undefined(cosine({"a": torch.zeros(2)}, {"a": torch.ones(2)}), "zero")
    assert_undefined(finite_or(value, "why"), "undefined: why")
    assert finite_or(2.0, "why") == 2.0


def test_plain_results_name_their_fields() -> None:
    bound = dg.Trace(1.0, dg.Undefined("a reason"))
    assert dg.to_json(bound) == {"value": 1.0, "standard_error": "undefined: a reason"}
    assert dg.to_json({0.5: torch.tensor([1.0, 2.0])}) == {"0.5": [1.0, 2.0]}
    assert json.loads(json.dumps(dg.to_json((bound, None)))) == [dg.to_json(bound), None]
