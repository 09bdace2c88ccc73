"""What every trainer is told of its run; ``test_lightning`` and others make runs of it."""

from typing import Any

import pytest

import plumbline as pl
from plumbline.integrations.planned_run import PlannedRun


def planned(records: int | None = None, **settings: Any) -> PlannedRun:
    return PlannedRun(
        method=pl.methods.dpsgd(clip=1.0),
        delta=1e-3,
        epsilon=3,
        noise_multiplier=None,
        records=records,
        settings=settings,
        decided=("checkpoint",),
    )


def test_an_epoch_draws_every_unit_once_on_average() -> None:
    assert planned().epoch_steps(range(10), 4) == 3
    assert planned(16).epoch_steps(range(10), 4) == 4
    users = [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]
    assert planned(user_ids=users).epoch_steps(range(10), 4) == 1


@pytest.mark.parametrize("name", ["budget", "method", "checkpoint"])
def test_what_the_trainer_decides_cannot_be_given(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be given"):
        planned(**{name: 1})
