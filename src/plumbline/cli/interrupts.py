"""Ctrl-C: what ends a command, and what it says."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from plumbline.cli.app import Stopped, same_command


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
def stopping_after_the_step(folder: Path) -> Iterator[None]:
    """Ctrl-C inside ends a run after its step, which is saved; the second one does not wait."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        when = str(stopped)
        how = (
            f"stopped {when}, which is saved in {folder}. To go on"
            if when
            else f"broken off. The run in {folder} goes on from its last checkpoint, and what was "
            "spent after it stays spent. To go on"
        )
        raise Stopped(f"{how}, give the same command again: {same_command()}") from None


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
