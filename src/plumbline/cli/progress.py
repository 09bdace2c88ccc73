"""How far several runs are: a line for the whole and one for each, or plain lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column

from plumbline.cli.app import aside, note

if TYPE_CHECKING:
    from plumbline.experiments.pool import Progress

_NAME = 34  # the most columns for a run's name


class Watch:
    """Called with the progress of runs, which it shows.

    Attributes:
        done: How many runs are finished.
        total: Of how many; 0 before the first report.
        what: What is counted.
    """

    def __init__(self) -> None:
        self.done, self.total, self.what = 0, 0, "runs"

    def __call__(self, progress: Progress) -> None:
        """Shows it."""
        if self._take(progress):
            note(f"{self.done} of {self.total} {self.what} are done")

    def _take(self, progress: Progress) -> bool:
        """Whether it is news."""
        before, now = (self.done, self.total), (progress.done, progress.total)
        (self.done, self.total), self.what = now, progress.what
        return before != now


class BarWatch(Watch):
    """The same with bars, on a terminal."""

    def __init__(self, bars: Bars) -> None:
        super().__init__()
        self._bars = bars
        self._whole = bars.add_task("", total=None)
        self._runs: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        """Shows it."""
        self._take(progress)
        for name in [name for name in self._runs if name not in progress.running]:
            self._bars.remove_task(self._runs.pop(name))
        for name, (step, steps) in progress.running.items():
            if name not in self._runs:
                self._runs[name] = self._bars.add_task(_short(name), total=steps)
            self._bars.update(self._runs[name], completed=step, total=steps)
        # A run that is half done is half a run: the time left is a better guess.
        parts = sum(step / steps for step, steps in progress.running.values() if steps)
        done = self.done + parts
        self._bars.update(self._whole, description=progress.what, completed=done, total=self.total)


@contextmanager
def watching() -> Iterator[Watch]:
    """A progress callback, shown on standard error."""
    if not aside.is_terminal:
        yield Watch()
        return
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=min(30, max(8, aside.width - 64))),
        MofNCompleteColumn(separator=" of ", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Bars(*columns, console=aside, transient=True) as bars:
        yield BarWatch(bars)


@contextmanager
def watching_one(name: str) -> Iterator[Callable[[int, int], None]]:
    """The progress of one run, called with (done, total) after each step."""
    from plumbline.experiments.pool import Progress

    with watching() as watch:

        def on_progress(done: int, total: int) -> None:
            watch(Progress(int(done == total), 1, {name: (done, total)}))

        yield on_progress


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
