"""Every diagnostic with a name on runs of many kinds: plain values that agree with each other."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import plumbline as pl
from plumbline.diagnostics import DIAGNOSTICS, Probe, to_json
from plumbline.diagnostics.named.clipping import BINS, PLANE_BINS
from plumbline.methods import Method
from tests.diagnostics.problems import assert_plain
from tests.training.small import RECORDS, budget, private

KINDS: dict[str, Callable[[], Method]] = {
    "nonprivate": pl.methods.nonprivate,
    "dpsgd": lambda: pl.methods.dpsgd(clip=0.3),
    "global_adapt": lambda: pl.methods.global_adapt(clip=0.3, initial=3.0),
    "normalised": pl.methods.normalised,
    "per_layer": lambda: pl.methods.per_layer(clip=0.3),
    "dpsgd_f": lambda: pl.methods.dpsgd_f(clip=0.3),
    "bam": lambda: pl.methods.bam(clip=0.3, radius=0.3),
    "averaged": lambda: pl.methods.averaged(clip=0.3, size=2),
    "fairlens": lambda: pl.methods.fairlens(clip=0.3),
}


def measured(kind: str, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last reading along a run, and that of its end."""
    probe = Probe(
        every=5,
        records=32,
        measure=list(DIAGNOSTICS),
        group_names={0: "even", 1: "odd"},
    )
    groups = torch.arange(RECORDS) % 2
    run = private(method=KINDS[kind](), plan=budget(steps=5), sensitive_features=groups, **settings)
    probe.begin(run)
    run.fit([probe], progress=False)
    along, end = probe.readings
    return along.results, end.results


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_plain_whatever_the_method(kind: str) -> None:
    along, end = measured(kind)
    assert_plain(along)
    assert_plain(end)
    assert set(along) | set(end) == set(DIAGNOSTICS)


@pytest.fixture(scope="module")
def last() -> dict[str, Any]:
    along, end = measured("dpsgd")
    return json.loads(json.dumps(to_json(along | end)))


def test_norms_cosines_and_projections_are_counted_and_not_listed(last: dict[str, Any]) -> None:
    histogram = last["norms"]["histogram"]
    assert len(histogram["edges"]) == BINS + 1
    assert sum(histogram["counts"]["all"]) == 32
    groups = [histogram["counts"][name] for name in ("even", "odd")]
    assert [a + b for a, b in zip(*groups, strict=True)] == histogram["counts"]["all"]
    assert last["norms"]["clip"] == 0.3
    assert sum(last["symmetry"]["cosines"]["counts"]) == 32
    plane = last["symmetry"]["plane"]
    assert len(plane["counts"]) == len(plane["counts"][0]) == len(plane["steps"]) == PLANE_BINS
    assert sum(map(sum, plane["counts"])) + plane["outside"] == 32


def test_the_biass_parts_agree(last: dict[str, Any]) -> None:
    for found in (last["bias"], *last["bias"]["by_group"].values()):
        along, away = found["magnitude"], found["relative_direction"]
        assert found["cosine"] == pytest.approx(along / math.hypot(along, away), abs=1e-4)
        assert found["relative"] == pytest.approx(math.hypot(1 - along, away), abs=1e-4)
    whole = last["bias_by_batch_size"]["32"]
    assert whole["norm"] == pytest.approx(last["bias"]["norm"])
    assert list(last["bias_by_batch_size"]) == ["4", "16", "32"]
    assert last["errors"]["bias"] == pytest.approx(last["bias"]["norm"] ** 2)


def test_progress_and_risk_are_there_for_each_group(last: dict[str, Any]) -> None:
    losses = last["progress"]["loss_by_group"]
    assert min(losses.values()) <= last["progress"]["loss"] <= max(losses.values())
    assert last["progress"]["gradient_norm"] == pytest.approx(last["bias"]["gradient_norm"])
    for risk in last["excessive_risk"].values():
        assert risk["clip"] == pytest.approx(risk["magnitude"] + risk["direction"], abs=1e-6)
    assert set(last["hessian"]) == {"all", "even", "odd"}


def test_curvature_agrees_with_itself(last: dict[str, Any]) -> None:
    assert last["spectrum"]["largest"][0] == pytest.approx(max(last["density"]["values"]))
    assert last["noise_bound"]["sharpness"] == pytest.approx(last["hessian"]["all"], rel=1e-3)
    bound = last["noise_bound"]
    assert bound["bound"] == pytest.approx(0.5 * abs(bound["sharpness"]) * bound["noise_norm"])
    assert isinstance(last["estimated_sharpness"], float)
    assert len(last["landscape"]["losses"]) == len(last["landscape"]["steps"])
    assert last["risk_bounds"]["stable"] in (True, False)


def test_a_method_without_a_bound_has_no_clip_line() -> None:
    along, _ = measured("nonprivate")
    assert along["norms"]["clip"] is None
    assert along["norms"]["clipped"] == 0
    assert along["bias"].cosine == pytest.approx(1)
    assert str(along["symmetry"]["bias"]).startswith("undefined:")
    assert sum(along["symmetry"]["cosines"]["counts"]) == 32


def test_the_clip_line_of_global_adapt_is_its_bound() -> None:
    along, _ = measured("global_adapt")
    assert along["norms"]["clip"] > 0.5
    assert along["norms"]["clipped"] < 0.5


def test_buckets_have_norms_of_their_own_and_groups_a_bias_of_theirs() -> None:
    along, _ = measured("averaged")
    counts = along["norms"]["histogram"]["counts"]
    assert set(counts) == {"all"}
    assert sum(counts["all"]) <= 16
    assert along["norms"]["clip"] == 0.3
    for one in along["bias"].by_group.values():
        assert all(isinstance(value, float) for value in dataclasses.asdict(one).values())
