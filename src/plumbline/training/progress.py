"""How a run's progress looks: two bars on a terminal, plain lines elsewhere, or nothing.

Everything shown on the main lines is public or covered by the guarantee. Readings that are not
stand on a line of their own that says so.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from plumbline.mechanism.rounding import up_to_places

if TYPE_CHECKING:
    from plumbline.training.fitting import StepInfo

_LINES = 20  # about one plain line, or one computation of the metrics, for each 5% of the steps
_NARROW, _WIDE = 10, 40  # columns of the bars
_ROOMY = 72  # columns of the terminal


@dataclass(eq=False)
class Display(ABC):
    """Shows how far a run is.

    Attributes:
        console: Where to.
        step: The steps done so far.
        steps: The steps of the whole run.
        records: The expected number of records in a step, for the speed.
        epsilon: The budget; None when epsilon is not to be shown.
        delta: The delta at which it is spent.
    """

    console: Console
    step: int
    steps: int
    records: int
    epsilon: float | None
    delta: float

    beats: ClassVar[int] = _LINES
    """How often along the run a new reading of the loss is worth its cost."""

    def is_due(self, step: int, beats: int = _LINES) -> bool:
        """Whether ``step`` is one of about ``beats`` evenly spaced ones; the last always is."""
        return step % max(1, -(-self.steps // beats)) == 0 or step == self.steps

    @abstractmethod
    def update(self, info: StepInfo, readings: Mapping[str, float]) -> None:
        """After a step: where the run stands, and the latest readings that are not covered."""

    def note(self, text: str) -> None:  # noqa: B027 - lines have nowhere to put it
        """Prints a remark; may be called from a signal handler."""

    @abstractmethod
    def end(self, message: str | None) -> None:
        """Says why the run stopped early, or (None) that it is complete."""


class Silence(Display):
    """Shows nothing, so that no reading is worth its cost."""

    def is_due(self, step: int, beats: int = _LINES) -> bool:
        return False

    def update(self, info: StepInfo, readings: Mapping[str, float]) -> None:
        pass

    def end(self, message: str | None) -> None:
        pass


@dataclass(eq=False)
class Lines(Display):
    """A line for about every 5% of the steps."""

    def __post_init__(self) -> None:
        self._first = self.step
        self._latest: tuple[StepInfo, Mapping[str, float]] | None = None
        self._start = time.monotonic()

    def update(self, info: StepInfo, readings: Mapping[str, float]) -> None:
        self._latest = info, readings
        if self.is_due(info.step):
            self._say(self._line(info, readings))

    def end(self, message: str | None) -> None:
        if message is not None:
            if self._latest and not self.is_due(self._latest[0].step):
                self._say(self._line(*self._latest))
            self._say(message)

    def _line(self, info: StepInfo, readings: Mapping[str, float]) -> str:
        step = info.step
        parts = [f"step {step:,} of {self.steps:,} ({100 * step // self.steps}%)"]
        if self.epsilon is not None:
            parts.append(f"{spent(info.epsilon, self.epsilon)} at delta {self.delta:g}")
        elapsed = max(time.monotonic() - self._start, 1e-9)
        speed = (step - self._first) / elapsed
        parts.append(f"{per_second(self.records * speed)}")
        if step < self.steps:
            parts.append(f"{duration((self.steps - step) / speed)} left")
        else:
            parts.append(f"took {duration(elapsed)}")
        if readings:
            parts.append(not_covered(readings))
        return "; ".join(parts)

    def _say(self, line: str) -> None:
        self.console.print(line, soft_wrap=True, highlight=False, markup=False)


@dataclass(eq=False)
class Bars(Display):
    """A bar for the steps, a bar for the budget, and below them what is not covered."""

    beats: ClassVar[int] = 100

    def __post_init__(self) -> None:
        self._readings = ""
        self._note = ""
        self._bars = _Bars(self, self.console)
        self._steps = self._bars.add_task("steps", completed=self.step, total=self.steps)
        self._budget: TaskID | None = None
        if self.epsilon is not None and math.isfinite(self.epsilon):
            self._budget = self._bars.add_task(
                "epsilon", total=self.epsilon, spent=amounts(0.0, self.epsilon)
            )

    def update(self, info: StepInfo, readings: Mapping[str, float]) -> None:
        self._readings = not_covered(readings) if readings else ""
        if self._budget is not None:
            assert self.epsilon is not None
            shown = amounts(info.epsilon, self.epsilon)
            full = shown == amounts(self.epsilon, self.epsilon)
            done = self.epsilon if full else min(info.epsilon, self.epsilon)
            self._bars.update(self._budget, completed=done, spent=shown)
        self._bars.update(self._steps, completed=info.step)

    def note(self, text: str) -> None:
        self._note = text

    def end(self, message: str | None) -> None:
        self._note = ""
        self._bars.stop()
        if message is not None:
            self.console.print(message, highlight=False, markup=False)

    def start(self) -> None:
        """Begins to draw."""
        self._bars.start()

    def stop(self) -> None:
        """Draws for the last time; may be called again."""
        self._bars.stop()

    @property
    def is_roomy(self) -> bool:
        """Whether the terminal has room for the speed too."""
        return self.console.width >= _ROOMY

    @property
    def below(self) -> str:
        """The lines under the bars."""
        unbounded = self.epsilon is not None and math.isinf(self.epsilon)
        lines = (spent(math.inf, math.inf) if unbounded else "", self._readings, self._note)
        return "\n".join(line for line in lines if line)


class _Bars(Progress):
    """The bars, with further lines below."""

    def __init__(self, owner: Bars, console: Console) -> None:
        self._owner = owner
        width = min(max(console.width - 60, _NARROW), _WIDE)
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=width, finished_style="bar.complete"),
            _Value(owner),
            _Note(owner),
            console=console,
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self._owner.below:
            yield Text(self._owner.below, style="dim")


class _Value(ProgressColumn):
    """How much of how much."""

    def __init__(self, owner: Bars) -> None:
        self._owner = owner
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        if task.description == "steps":
            return Text(f"{int(task.completed):,} of {self._owner.steps:,}", justify="right")
        return Text(task.fields["spent"], justify="right")


class _Note(ProgressColumn):
    """Speed and time left beside the steps; delta beside the budget."""

    def __init__(self, owner: Bars) -> None:
        self._owner = owner
        super().__init__(Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        if task.description != "steps":
            return Text(f"at delta {self._owner.delta:g}", style="dim")
        if task.finished:
            speed, when = task.finished_speed or task.speed, f"took {duration(task.elapsed)}"
        else:
            speed, when = task.speed, f"{duration(task.time_remaining)} left"
        if not speed or not self._owner.is_roomy:
            return Text(when)
        return Text(f"{when}, {per_second(speed * self._owner.records)}")


@contextmanager
def display_on(where: Console | bool | None, **run: Any) -> Iterator[Display]:
    """The display for a console: bars on a terminal, else lines; nothing for False.

    Args:
        where: The console; by default standard error.
        **run: What a ``Display`` knows of the run.
    """
    console = where if isinstance(where, Console) else Console(stderr=True)
    if where is False:
        yield Silence(console, **run)
        return
    if not console.is_interactive or console.is_jupyter:
        yield Lines(console, **run)
        return
    bars = Bars(console, **run)
    bars.start()
    try:
        yield bars
    finally:
        bars.stop()


def spent(epsilon: float, budget: float) -> str:
    """Epsilon spent of the budget, rounded up, or that there is no guarantee."""
    if math.isinf(budget):
        return "epsilon infinite: no privacy guarantee"
    return f"epsilon {amounts(epsilon, budget)}"


def amounts(epsilon: float, budget: float) -> str:
    """Both numbers with two decimals, or more for a budget below 1; rounded up."""
    places = 2 if budget >= 1 else 2 - math.floor(math.log10(budget))
    return f"{up_to_places(epsilon, places)} of {up_to_places(budget, places)}"


def not_covered(readings: Mapping[str, float]) -> str:
    """The readings, marked."""
    values = ", ".join(f"{name} {value:.4g}" for name, value in readings.items())
    return f"not covered by epsilon: {values}"


def per_second(records: float) -> str:
    """A speed in expected records: the realised number is private."""
    return f"{records:,.0f} records/s" if records >= 10 else f"{records:.2g} records/s"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
