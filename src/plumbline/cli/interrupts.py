"""Ctrl-C: what ends a command, and when."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from plumbline.cli.app import Stopped, note


class BetweenSteps(KeyboardInterrupt):
    """Ctrl-C that has waited for a step to end: everything is of one moment, and can be saved."""


@contextmanager
def stopping(message: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C inside ends the command at once, with a message that is made then."""
    # A handler of our own, so that `Private.fit` does not put its own in place.
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(message()) from None
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stopping_between_steps() -> Iterator[Callable[[], None]]:
    """Yields a function to be called after every step; it raises if Ctrl-C was pressed.

    The first Ctrl-C waits for the step to end, so that what it paid for can be saved, and raises
    ``BetweenSteps``; the second does not wait.
    """
    pressed = False

    def first(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, _interrupt)
        note("stopping after this step (Ctrl-C again: at once)")

    def between_steps() -> None:
        if pressed:
            raise BetweenSteps

    before = signal.signal(signal.SIGINT, first)
    try:
        yield between_steps
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
