"""Releases: one mechanism per batch, and exact storage."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plumbline.mechanism.release import (
    FullBatch,
    GaussianQuery,
    PoissonSampling,
    Query,
    StepRelease,
)

positive = st.floats(min_value=1e-300, max_value=1e300)
sigmas = st.floats(min_value=1e-150, max_value=1e150)
samplings = st.one_of(
    st.builds(PoissonSampling, rate=st.floats(min_value=1e-300, max_value=1)), st.builds(FullBatch)
)
queries = st.builds(GaussianQuery, name=st.text(), sensitivity=positive, noise_multiplier=positive)
releases = st.builds(
    StepRelease,
    sampling=samplings,
    queries=st.lists(queries, min_size=1, max_size=4).map(tuple),
    unbounded_reason=st.none() | st.text(),
    composition=st.sampled_from(["joint", "basic"]),
)


def release(*noise: float, reason: str | None = None) -> StepRelease:
    asked = tuple(
        GaussianQuery(name=f"query {place}", sensitivity=1.0, noise_multiplier=sigma)
        for place, sigma in enumerate(noise)
    )
    return StepRelease(sampling=PoissonSampling(rate=0.1), queries=asked, unbounded_reason=reason)


@given(releases)
def test_a_release_survives_json_exactly(original: StepRelease) -> None:
    assert StepRelease.from_dict(json.loads(json.dumps(original.to_dict()))) == original


@given(st.lists(sigmas, min_size=1, max_size=5))
def test_queries_on_one_batch_add_their_inverse_squares(noise: list[float]) -> None:
    smallest = min(noise)
    expected = smallest * sum((smallest / sigma) ** 2 for sigma in noise) ** -0.5
    assert release(*noise).noise_multiplier == pytest.approx(expected, rel=1e-12)


def test_one_query_keeps_its_noise_multiplier_to_the_last_bit() -> None:
    assert release(0.1 + 0.2).noise_multiplier == 0.1 + 0.2


def test_two_equal_queries_halve_the_variance() -> None:
    assert release(1.0, 1.0).noise_multiplier == pytest.approx(1 / math.sqrt(2))


def test_one_query_without_noise_leaves_no_noise_at_all() -> None:
    silent = release(1.0, 0.0)
    assert silent.noise_multiplier == 0
    assert silent.no_guarantee_reason is not None
    assert "query 1" in silent.no_guarantee_reason


def test_an_infinite_sensitivity_is_allowed_only_without_noise() -> None:
    GaussianQuery(name="sum", sensitivity=math.inf, noise_multiplier=0.0)
    with pytest.raises(ValueError, match="sensitivity inf"):
        GaussianQuery(name="sum", sensitivity=math.inf, noise_multiplier=1.0)


def test_a_method_without_a_guarantee_says_why_whatever_its_noise() -> None:
    unbounded = release(5.0, reason="one record moves every summand")
    assert unbounded.noise_multiplier == 0
    assert unbounded.no_guarantee_reason == "one record moves every summand"
    assert release(5.0).no_guarantee_reason is None


def test_a_query_is_recorded_without_its_value() -> None:
    query = Query(value={"weight": torch.ones(3)}, sensitivity=2.0, sigma=0.5, name="count")
    assert query.asked == GaussianQuery(name="count", sensitivity=2.0, noise_multiplier=0.5)
    assert Query(value=torch.ones(1), sensitivity=1.0, sigma=1.0).name == "gradient"


def test_releases_are_values() -> None:
    one = release(1.0)
    assert one == release(1.0)
    assert len({one, release(1.0)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.queries = ()  # type: ignore[misc]
    with pytest.raises(TypeError):
        PoissonSampling(0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.inf, math.nan])
def test_a_sensitivity_is_positive_and_finite(sensitivity: float) -> None:
    with pytest.raises(ValueError, match="sensitivity"):
        Query(value=torch.ones(1), sensitivity=sensitivity, sigma=1.0)


@pytest.mark.parametrize("sigma", [-1.0, math.inf, math.nan])
def test_a_noise_multiplier_is_finite_and_not_negative(sigma: float) -> None:
    with pytest.raises(ValueError, match="noise multiplier"):
        Query(value=torch.ones(1), sensitivity=1.0, sigma=sigma)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_a_sampling_rate_is_a_probability(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling rate"):
        PoissonSampling(rate=rate)


def test_a_step_that_asks_nothing_is_refused_rather_than_free() -> None:
    with pytest.raises(ValueError, match="at least one query"):
        StepRelease(sampling=FullBatch(), queries=())
    StepRelease(sampling=FullBatch(), queries=(), unbounded_reason="not private")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sampling",), {"kind": "shuffle", "rate": 0.1}),
        (("sampling",), "poisson"),
        (("sampling", "rate"), "0.1"),
        (("sampling", "rate"), 2.0),
        (("sampling", "extra"), 1),
        (("queries",), "none"),
        (("queries",), []),
        (("queries", 0, "noise_multiplier"), True),
        (("queries", 0, "noise_multiplier"), None),
        (("queries", 0, "name"), 3),
        (("queries", 0, "sigma"), 1.0),
        (("unbounded_reason",), False),
        (("surplus",), 0),
    ],
)
def test_a_damaged_release_is_refused(path: tuple[str | int, ...], value: object) -> None:
    data = release(1.0).to_dict()
    place = data
    for key in path[:-1]:
        place = place[key]  # type: ignore[index]
    place[path[-1]] = value  # type: ignore[index]
    with pytest.raises(ValueError, match=r"\S"):
        StepRelease.from_dict(data)


@pytest.mark.parametrize("missing", ["sampling", "queries", "unbounded_reason"])
def test_a_missing_field_is_refused(missing: str) -> None:
    data = release(1.0).to_dict()
    del data[missing]
    with pytest.raises(ValueError, match="exactly the fields"):
        StepRelease.from_dict(data)


def test_what_a_release_adds_to_delta_is_kept_and_is_a_probability() -> None:
    query = GaussianQuery(name="counts", sensitivity=2.0, noise_multiplier=3.0)
    release = StepRelease(sampling=FullBatch(), queries=(query,), delta=1e-7)
    assert StepRelease.from_dict(json.loads(json.dumps(release.to_dict()))) == release
    assert "delta" not in dataclasses.replace(release, delta=0.0).to_dict()
    for delta in (-1e-9, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta is"):
            dataclasses.replace(release, delta=delta)
    with pytest.raises(ValueError, match="delta is 'some', not a number"):
        StepRelease.from_dict({**release.to_dict(), "delta": "some"})
