"""The loops over a run: ``for batch in private``, and epoch by epoch.

An epoch is a public number of steps, 1/q rounded up or down so that the epochs of a budget have
exactly its steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plumbline.training.batches import PrivateBatch
    from plumbline.training.private import Private


class BatchRefused(RuntimeError):
    """A step was asked for with a batch that the sampler did not just draw."""


class RunFinished(UserWarning):
    """A loop was begun over steps that are all made: it does nothing."""


def all_batches(private: Private) -> Iterator[PrivateBatch]:
    """The batches of the remaining steps, each to be stepped on."""
    if private.first_step < private.stop <= private.steps_done:
        _warn(
            f"All {private.stop:,} steps of the run are made, so this loop does nothing: one loop "
            "over a run makes them all, whatever the number of epochs. To train epoch by epoch, "
            "write `for epoch in range(private.epochs):` and in it `for batch in "
            "private.epoch(epoch):`."
        )
    return until(private, private.stop)


def epoch(private: Private, number: int | None) -> Iterator[PrivateBatch]:
    """The batches of one epoch that remain, after those of earlier ones if they were left out."""
    plan = private.plan
    if number is None:
        number = min(plan.epoch_at(private.steps_done), plan.epochs - 1)
    if type(number) is not int or not 0 <= number < plan.epochs:
        raise ValueError(
            f"epoch is {number!r}; the budget pays for {plan.epochs:,}, numbered from 0 to "
            f"{plan.epochs - 1:,}. `for epoch in range(private.epochs)` goes through them."
        )
    end = min(private.stop, plan.epoch_end(number))
    if private.first_step < end <= private.steps_done:
        _warn(
            f"Epoch {number:,} is made already, so this loop does nothing: the run stands at step "
            f"{private.steps_done:,} of {private.stop:,}, and epochs are numbered from 0."
        )
    return until(private, end)


def until(private: Private, end: int) -> Iterator[PrivateBatch]:
    """The batches of the steps up to ``end``, each to be stepped on."""
    while private.steps_done < end:
        before = private.steps_done
        yield private.draw()
        if private.steps_done == before:
            raise BatchRefused(
                f"The batch of step {before} was passed over without private.step(batch). A "
                "step's batch, empty or not, is part of what is accounted: step on every "
                "batch, or leave the loop with break and start it again later. (To accumulate "
                "gradients, state the whole batch size, and max_physical_batch for memory.)"
            )


def _warn(text: str) -> None:
    warnings.warn(text, RunFinished, stacklevel=4)  # where the loop is
