"""Loops over a run: epochs have the budget's steps exactly, and no loop does nothing unsaid."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plumbline import Budget, Private
from plumbline.training import RunFinished
from tests.training.runs import Run, weights
from tests.training.small import budget, private, run

LOOP = r"for epoch in range\(private.epochs\)"


def epochs_of(mine: Private, count: int) -> list[int]:
    """Makes so many epochs; how many steps each had."""
    sizes = []
    for number in range(count):
        before = mine.steps_done
        for batch in mine.epoch(number):
            mine.step(batch)
        sizes.append(mine.steps_done - before)
    return sizes


def test_epoch_by_epoch_is_one_loop() -> None:
    one, other = (private(plan=budget(steps=None, epochs=3)) for _ in range(2))
    assert one.epochs == 3
    assert epochs_of(one, 3) == [4, 4, 4]
    run(other)
    assert torch.equal(weights(one.model), weights(other.model))


def test_without_a_number_it_is_the_epoch_in_which_the_run_stands() -> None:
    mine = private(plan=budget(steps=None, epochs=2))
    for batch in mine.epoch():
        mine.step(batch)
        break
    assert mine.steps_done == 1
    for end in (4, 8):
        for batch in mine.epoch():
            mine.step(batch)
        assert mine.steps_done == end
    with pytest.warns(RunFinished, match="Epoch 1 is made already"):
        assert list(mine.epoch()) == []


def test_the_last_epoch_has_what_is_left() -> None:
    mine = private(plan=budget(steps=6))
    assert mine.epochs == 2
    assert epochs_of(mine, 2) == [4, 2]


def noisy(**changes: Any) -> Budget:
    return Budget(noise_multiplier=1.0, delta=1e-9, **changes)


@given(records=st.integers(1, 5000), batch=st.integers(1, 5000), epochs=st.integers(1, 9))
def test_epochs_have_the_steps_of_the_budget_and_differ_by_at_most_one(
    records: int, batch: int, epochs: int
) -> None:
    batch = min(batch, records)
    plan = noisy(epochs=epochs, expected_batch_size=batch).resolve(records)
    assert plan.epochs == epochs
    ends = [0, *(plan.epoch_end(number) for number in range(epochs))]
    assert ends[-1] == plan.steps
    sizes = [after - before for before, after in pairwise(ends)]
    assert all(abs(size - Fraction(records, batch)) < 1 for size in sizes)
    for number, (first, end) in enumerate(pairwise(ends)):
        assert plan.epoch_at(first) == plan.epoch_at(end - 1) == number


def test_a_second_loop_over_a_finished_run_says_so() -> None:
    mine = private()
    run(mine)
    with pytest.warns(RunFinished, match=LOOP) as told:
        assert list(mine) == []
    assert told[0].filename == __file__
    with pytest.warns(RunFinished, match="Epoch 0 is made already") as told:
        assert list(mine.epoch(0)) == []
    assert told[0].filename == __file__


@pytest.mark.parametrize("number", [-1, 2, 1.0, True])
def test_an_epoch_that_there_is_not(number: Any) -> None:
    with pytest.raises(ValueError, match=r"the budget pays for 2, numbered from 0 to 1"):
        private(plan=budget(steps=8)).epoch(number)


def test_a_resumed_run_goes_on_within_its_epoch_and_says_nothing(tmp_path: Path) -> None:
    settings = {"seed": 3, "deterministic": True, "checkpoint": tmp_path / "run"}
    first = Run("sgd", settings).make()
    assert first.plan.epoch_end(0) == 6
    run(first, 8)
    first.save()
    resumed = Run("sgd", settings).make()
    assert epochs_of(resumed, 2) == [0, 4]
    resumed.save()
    finished = Run("sgd", settings).make()
    assert epochs_of(finished, 2) == [0, 0]
    assert list(finished) == []


def test_a_batch_is_no_pair() -> None:
    mine = private()
    with pytest.raises(TypeError, match=r"for batch in private.*private\.step\(batch\)"):
        _x, _y = next(iter(mine))
    for use in (lambda b: b[0], lambda b: b["labels"], lambda b: b.to("cpu"), lambda b: b.items()):
        with pytest.raises((TypeError, AttributeError), match="not a tuple of tensors"):
            use(next(iter(mine)))
    assert mine.charged == 0
