"""``Private.fit``: the remaining steps of a run, with callbacks and a progress display.

What is shown and what callbacks receive is public or covered by the guarantee: steps, epsilon,
and a speed in *expected* records (the realised size of a batch is private). The training loss and
metrics are exact answers about data; they are computed only when asked for, and marked
"not covered". Computing them changes neither random numbers nor training modes.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from rich.console import Console
from torch import nn

from plumbline.training.loggers import Logger
from plumbline.training.looping import until
from plumbline.training.progress import Display, display_on
from plumbline.without_trace import evaluating, no_trace

if TYPE_CHECKING:
    from plumbline.training.private import Private

Metric = Callable[[nn.Module], float]

_SHOWN = ("epsilon", "loss")
_STOP = "stop"


@dataclass(frozen=True)
class StepInfo:
    """What a callback receives after a step; nothing in it costs privacy.

    Attributes:
        step: How many steps are done, this one included.
        steps: How many the run has.
        spent: Computes epsilon; holds public constants only.
        delta: The delta at which it was spent.
    """

    step: int
    steps: int
    spent: Callable[[], float] = field(repr=False, compare=False)
    delta: float

    @cached_property
    def epsilon(self) -> float:
        """Spent so far, rounded up; infinite for a method without a guarantee.

        Computed when it is first read: that takes some hundredths of a second at a new step count.
        """
        return self.spent()


@runtime_checkable
class Callback(Protocol):
    """An object that is called after every step; a plain function of the same arguments will do."""

    def after_step(self, private: Private, info: StepInfo) -> object:
        """Called after each step; may log, save, change a rate, or raise ``StopFitting``."""


class StopFitting(Exception):
    """Raised by a callback: ``fit`` returns after the step, and can be called again."""


def fit(
    private: Private,
    callbacks: Sequence[Callback | Callable[[Private, StepInfo], object]] = (),
    *,
    show: Sequence[str] = ("epsilon",),
    metrics: Mapping[str, Metric] | None = None,
    progress: Console | bool | None = None,
) -> StepInfo:
    """Runs the remaining steps.

    Ctrl-C ends it after the current step; a second one breaks the step off, as usual. Where several
    processes make the run, all call this, and stop after the same step.

    Args:
        private: The run.
        callbacks: Called after every step, in order.
        show: ``"epsilon"``, and ``"loss"`` for the mean training loss of some batches, which is
            not covered by epsilon.
        metrics: Functions of the model, by name, computed (in evaluation mode, without gradients)
            and shown about twenty times along the run, and written where a logger has a point. Not
            covered by epsilon.
        progress: The console to show progress on; by default standard error, with a bar on a
            terminal and plain lines elsewhere. False shows nothing, and of several processes only
            the first one shows any.

    Returns:
        Where the run stands: it is finished when ``step`` equals ``steps``.
    """
    calls = [_callable(callback) for callback in callbacks]
    metrics = dict(metrics or {})
    _check_shown(show, metrics)
    if private.sharded and ("loss" in show or metrics):
        raise ValueError(
            "The training loss and metrics are read by the first process alone, and with sharded "
            "parameters no process can run the model alone. Leave them out of fit(), and evaluate "
            "the model between steps on all processes together."
        )
    info = _info(private)
    with ExitStack() as stack:
        display = stack.enter_context(
            display_on(
                progress if private.ranks.first else False,
                step=info.step,
                steps=info.steps,
                records=private.plan.expected_batch_size,
                epsilon=_budget(private) if "epsilon" in show else None,
                delta=info.delta,
            )
        )
        loggers = [one for one in callbacks if isinstance(one, Logger) and private.ranks.first]
        watching = _Watch(private, display, "loss" in show, metrics, loggers)
        interrupted = stack.enter_context(_interruptible(display))
        for batch in until(private, private.stop):
            loss = private.step(batch)
            info = _info(private)
            watching.after(info, loss)
            try:
                for call in calls:
                    call(private, info)
            except StopFitting as reason:
                display.end(f"Stopped by a callback{f': {reason}' if str(reason) else '.'}")
                return info
            if interrupted():
                private.ranks.wish(_STOP)
            if private.ranks.granted(_STOP) and info.step < info.steps:
                display.end("Stopped after the step, as asked. Call fit() to go on from here.")
                return info
        display.end(None)
    return info


class _Watch:
    """Takes the readings that are not covered, when they are due, and passes them on."""

    def __init__(
        self,
        private: Private,
        display: Display,
        loss: bool,
        metrics: Mapping[str, Metric],
        loggers: Sequence[Logger],
    ) -> None:
        self._private = private
        self._display = display
        self._loss = loss
        self._metrics = metrics
        self._loggers = loggers
        self._readings: dict[str, float] = {}

    def after(self, info: StepInfo, loss: float) -> None:
        new: dict[str, float] = {}
        due = [one for one in self._loggers if one.is_due(info.step, self._private.stop)]
        shown = self._display.is_due(info.step, self._display.beats)
        if self._loss and (shown or due) and not math.isnan(loss):
            new["loss"] = float(loss)
        if self._metrics and (self._display.is_due(info.step) or due):
            with (
                no_trace(self._private.model),
                torch.no_grad(),
                evaluating(self._private.model),
            ):
                for name, metric in self._metrics.items():
                    new[name] = float(metric(self._private.model))
        self._readings |= new
        self._display.update(info, self._readings)
        for logger in due if new else ():
            logger.log(info.step, not_covered=new)


@contextmanager
def _interruptible(display: Display) -> Iterator[Callable[[], bool]]:
    """Yields whether Ctrl-C was pressed; the second one interrupts as usual."""
    pressed = threading.Event()

    def first(_signal: int, _frame: FrameType | None) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        display.note("stopping after this step (Ctrl-C again: at once)")

    # Only the main thread may set handlers; and a handler of the user's own stays.
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, first)
    try:
        yield pressed.is_set
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _info(private: Private) -> StepInfo:
    return StepInfo(private.steps_done, private.stop, private.spent, private.plan.delta)


def _budget(private: Private) -> float:
    stated = private.plan.budget.epsilon
    return private.plan.epsilon if stated is None else stated


def _callable(callback: Any) -> Callable[[Private, StepInfo], object]:
    if isinstance(callback, Callback):
        return callback.after_step
    if callable(callback):
        found: Callable[[Private, StepInfo], object] = callback
        return found
    raise TypeError(
        f"A callback of type {type(callback).__name__} is neither a function of (private, info) "
        "nor an object with a method after_step(private, info)."
    )


def _check_shown(show: Sequence[str], metrics: Mapping[str, Metric]) -> None:
    if isinstance(show, str):
        raise TypeError(f"show is the string {show!r}; give a tuple of names, as in ({show!r},).")
    unknown = [name for name in show if name not in _SHOWN and name not in metrics]
    if unknown:
        raise ValueError(
            f"show has {unknown[0]!r}; what can be shown is {', '.join(map(repr, _SHOWN))} and the "
            "names of the metrics that are given."
        )
    if "loss" in metrics:
        raise ValueError("A metric is named 'loss', which is the training loss; name it otherwise.")
