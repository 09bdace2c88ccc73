"""The composition of privacy loss distributions, against dp-accounting's own, point by point."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant, privacy_loss_mechanism

from plumbline.mechanism import privacy_loss

Piece = privacy_loss.Piece


def reference(pieces: list[Piece], delta: float, interval: float, relation: object) -> float:
    """dp-accounting's accountant, fed step by step in its own way."""
    composed = PLDAccountant(relation, value_discretization_interval=interval)
    for rate, sigma, count in pieces:
        event = dp_accounting.GaussianDpEvent(sigma)
        if rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(rate, event)
        composed.compose(event, count)
    return float(composed.get_epsilon(delta))


@pytest.mark.parametrize("rate", [0.9, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("direction", ["ADD", "REMOVE"])
def test_the_curve_is_dp_accountings(rate: float, sigma: float, direction: str) -> None:
    adjacency = privacy_loss_mechanism.AdjacencyType[direction]
    mechanism = privacy_loss_mechanism.GaussianPrivacyLoss(
        sigma, sampling_prob=rate, adjacency_type=adjacency
    )
    largest = privacy_loss._largest_loss(rate, sigma)
    edge = -math.log1p(-rate) * (1 if direction == "ADD" else -1)
    losses = np.concatenate([np.linspace(-largest, largest, 101), [edge, edge + 1e-9, edge - 1e-9]])
    ours = {"ADD": privacy_loss._delta_if_added, "REMOVE": privacy_loss._delta_if_removed}
    expected = np.array([mechanism.get_delta_for_epsilon(loss) for loss in losses.tolist()])
    found = np.clip(ours[direction](losses, rate, sigma), 0, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


MIXTURES = {
    "one run": [(0.05, 1.5, 1000)],
    "small rate": [(0.001, 2.0, 5000)],
    "two runs": [(0.05, 1.5, 300), (0.01, 0.8, 500)],
    "counts by binary digits": [(0.02, 1 + place / 10, place + 1) for place in range(9)],
    "equal counts": [(0.02, 1 + place / 10, 40) for place in range(5)],
    "with full batches": [(1.0, 20.0, 30), (0.02, 1.0, 200), (1.0, 30.0, 50)],
}


@pytest.mark.parametrize("replace_one", [False, True])
@pytest.mark.parametrize("name", MIXTURES)
def test_epsilon_is_dp_accountings_at_the_same_interval(name: str, replace_one: bool) -> None:
    pieces = MIXTURES[name]
    relation = (
        NeighboringRelation.REPLACE_ONE if replace_one else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    interval = privacy_loss.discretisation_interval(privacy_loss._merge_full_batches(pieces))
    expected = reference(pieces, 1e-6, interval, relation)
    found = privacy_loss.epsilon(pieces, delta=1e-6, replace_one=replace_one)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "fine"),
    [(0.05, 1.5, 1000, 2e-4), (0.001, 2.0, 5000, 1e-5), (1 / 92, 1.0, 1840, 1e-4)],
)
def test_the_interval_overstates_by_less_than_a_thousandth(
    rate: float, sigma: float, steps: int, fine: float
) -> None:
    pieces = [(rate, sigma, steps)]
    exact = reference(pieces, 1e-6, fine, NeighboringRelation.ADD_OR_REMOVE_ONE)
    found = privacy_loss.epsilon(pieces, delta=1e-6, replace_one=False)
    assert found is not None
    assert exact - 1e-6 <= found <= 1.001 * exact


@pytest.mark.parametrize("steps", [1_000, 10_000])
def test_the_mass_that_a_composition_may_lose_is_part_of_delta(steps: int) -> None:
    """Measured at up to 1.5e-14 a step: where delta is small, this is a visible part of it."""
    pieces, delta = [(0.01, 1.0, steps)], 1e-13 * steps
    interval = privacy_loss.discretisation_interval(pieces)
    found = privacy_loss.epsilon(pieces, delta=delta, replace_one=False)
    left, whole = (
        reference(pieces, at, interval, NeighboringRelation.ADD_OR_REMOVE_ONE)
        for at in (delta - 1.5e-14 * steps, delta)
    )
    assert found is not None
    assert found >= left > whole * (1 + 1e-3)


@pytest.mark.parametrize(
    ("pieces", "delta"),
    [([(0.01, 1.0, 10_000)], 1e-10), ([(0.01, 0.05, 1)], 1e-5), ([(1.0, 1.0, 10_000)], 1e-5)],
    ids=["delta near rounding", "hardly any noise", "many full batches"],
)
def test_where_floating_point_would_decide_there_is_no_answer(
    pieces: list[Piece], delta: float
) -> None:
    assert privacy_loss.epsilon(pieces, delta=delta, replace_one=False) is None
