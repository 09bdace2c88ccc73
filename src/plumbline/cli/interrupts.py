"""What ends a command before its result, Ctrl-C or one part of a job array, and what it says."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import typer

from plumbline.cli.app import Stopped, same_command, say

if TYPE_CHECKING:
    from plumbline.cli.progress import Watch


@contextmanager
def stopping(watch: Watch, folder: Path, *, secret: bool = False) -> Iterator[None]:
    """Ctrl-C inside ends the command at once, and says what is kept and how to go on.

    Args:
        watch: Knows how many runs are finished.
        folder: Where they are kept.
        secret: Whether candidates are tried that nobody may see, of which nothing is kept.
    """
    # A handler of our own, so that `Private.fit` does not put its own in place.
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        finished = f"{watch.done} of {watch.total} {watch.what} are finished and kept in {folder}; "
        kept = (
            "what the candidates of a private selection did is deleted, and was not disclosed. "
            if secret
            else finished + "the others go on from their last checkpoint. "
            if watch.total
            else "no run was started. "
        )
        raise Stopped(
            f"stopped: {kept}To go on, give the same command again: {same_command()}"
        ) from None
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ending_with_its_part() -> Iterator[None]:
    """A part of a job array that is made ends the command well, with what comes next."""
    from plumbline.experiments.sharding import PartMade

    try:
        yield
    except PartMade as made:
        say(str(made))
        raise typer.Exit from None


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
            else f"broken off. The run in {folder} goes on where it was; the step that was broken "
            "off stays spent. To go on"
        )
        raise Stopped(f"{how}, give the same command again: {same_command()}") from None


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
