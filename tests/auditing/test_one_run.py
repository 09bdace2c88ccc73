"""The audit of a whole training by one run."""

import numpy as np
import pytest
from scipy import special

from plumbline.auditing import audit_run
from plumbline.auditing.lower_bounds import LowerBound
from plumbline.auditing.one_run import RunAudit


def randomised_response(epsilon: float, seed: int = 0):  # type: ignore[no-untyped-def]
    """A training that tells of each canary whether it was in, truly as often as epsilon allows."""
    draw = np.random.default_rng(seed)

    def train(included):  # type: ignore[no-untyped-def]
        truly = draw.random(len(included)) < special.expit(epsilon)
        return np.where(truly, included, ~included) + 1e-3 * draw.random(len(included))

    return train


def test_what_a_training_tells_is_found() -> None:
    found = audit_run(randomised_response(2.0), 4000, delta=0, guesses=4000, seed=0)
    assert 1.8 < found.bound.epsilon < 2
    assert not found.refuted(2.0)
    assert found.refuted(1.0)
    assert "Consistent" in found.verdict(2.0)
    assert "refuted" in found.verdict(1.0)
    assert "No epsilon is claimed" in found.verdict(np.inf)


def test_what_is_measured_is_rounded_down_and_what_is_claimed_up() -> None:
    bound = LowerBound(epsilon=1.2399, delta=1e-5, confidence=0.95, how="one run", trials=200)
    found = RunAudit(canaries=1000, guesses=200, correct=183, bound=bound)
    assert "at least 1.23, and 4.01 is claimed" in found.verdict(4.001)


def test_those_that_look_most_and_least_like_members_are_guessed() -> None:
    def train(included):  # type: ignore[no-untyped-def]
        scores = np.zeros(len(included))  # most canaries tell nothing
        scores[:200] = np.where(included[:200], 1, -1)
        return scores

    found = audit_run(train, 2000, delta=1e-6, guesses=100, seed=0)
    assert (found.correct, found.guesses, found.canaries) == (100, 100, 2000)
    assert found.bound.epsilon > 3
    everybody = audit_run(train, 2000, delta=1e-6, guesses=2000, seed=0)
    assert everybody.bound.epsilon < 1


def test_nothing_is_found_where_nothing_is_told() -> None:
    blind = audit_run(lambda included: np.zeros(len(included)), 1000, delta=1e-6, seed=0)
    assert blind.guesses == 200
    assert blind.bound.epsilon < 0.3


def test_the_coins_are_fair_and_their_own() -> None:
    seen = []
    for seed in (0, 0, 1, None, None):
        audit_run(
            lambda included: seen.append(included) or included * 1.0, 1000, delta=0, seed=seed
        )
    assert np.array_equal(seen[0], seen[1])
    assert all(400 < coins.sum() < 600 for coins in seen)
    assert len({coins.tobytes() for coins in seen}) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"canaries": 0}, "canaries is 0"),
        ({"guesses": 11}, "guesses is 11, more than the 10 canaries"),
        ({"train": lambda included: [1.0]}, r"scores of shape \(1,\) for 10 canaries"),
        ({"train": lambda included: np.full(10, np.nan)}, "none that is NaN"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message: str) -> None:  # type: ignore[no-untyped-def]
    given = {"train": lambda included: included, "canaries": 10, "delta": 0.0, **settings}
    with pytest.raises(ValueError, match=message):
        audit_run(**given)
