"""Learning-rate schedulers that belong to a run: stepped once for each update, and kept with it.

The run steps them itself: whether a loop had stepped one before it was killed could not be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau


class Schedules:
    """The schedulers of a run.

    Raises:
        ValueError: If one cannot be stepped by the run alone.
    """

    def __init__(self, schedulers: Sequence[Any]) -> None:
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    "schedulers has a ReduceLROnPlateau, which follows a measured value: a run "
                    "cannot step it, and what it measures on private records is not covered. "
                    "Leave it out and step it in your loop, or use a schedule of the steps alone."
                )
            if type(scheduler).__name__ == "AcceleratedScheduler":
                raise ValueError(
                    "A scheduler was prepared by accelerate, which steps it once for each process. "
                    "Give the plain one, and leave it out of accelerator.prepare."
                )
        self._schedulers = schedulers
        self._left: list[Any] | None = None  # where the last step left them

    def require_untouched(self) -> None:
        """Refuses to go on if code outside has stepped them.

        Raises:
            RuntimeError: Saying what to leave out.
        """
        if self._left is not None and self._left != self._places():
            raise RuntimeError(
                "A learning-rate scheduler that was given as schedulers= has been stepped outside "
                "of private.step, which does it after every update. Leave scheduler.step() out of "
                "the loop; or leave the scheduler out of schedulers=, and keep it yourself."
            )

    def step(self) -> None:
        """After an update."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._left = self._places()

    def _places(self) -> list[Any]:
        return [getattr(scheduler, "last_epoch", None) for scheduler in self._schedulers]
