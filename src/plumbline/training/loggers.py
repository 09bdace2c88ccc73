"""Loggers: callbacks that write a run's numbers to a file or a server.

What is written has "covered/" or "not covered/" before its name, so that nobody who finds a number
later can take one for the other. By itself a logger writes epsilon and the learning rate, which
cost no privacy. The training loss and metrics that ``fit`` is asked for are exact, and marked so.

A logger never costs a run its steps: the first error of writing is warned of, and the run goes on
without that logger. Whatever can be known at the start is refused there, before anything is spent.
"""

from __future__ import annotations

import csv
import importlib
import math
import os
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from plumbline.training.step_losses import NotCovered

if TYPE_CHECKING:
    from plumbline.training.fitting import StepInfo
    from plumbline.training.private import Private

COVERED, NOT_COVERED = "covered", "not covered"
_HEADER = ["step", "name", "value"]


class LoggingFailed(UserWarning):
    """A logger could not write, and writes no more; the run is not affected."""


class Logger(ABC):
    """Writes a run's numbers: ``private.fit([logger])``. A subclass has ``write``, and is complete.

    Args:
        every: How many steps lie between two points; the last step always has one.
    """

    _every = 10
    _failed = False

    def __init__(self, *, every: int = 10) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1.")
        self._every = every

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes numbers of a step, by names that say whether epsilon covers them."""

    def end(self) -> None:  # noqa: B027 - most have nothing to close
        """Writes what is left, and closes what is open."""

    def is_due(self, step: int, steps: int) -> bool:
        """Whether a step has a point."""
        return step % self._every == 0 or step == steps

    def after_step(self, private: Private, info: StepInfo) -> None:
        """Writes epsilon, where there is a guarantee, and the learning rate, where it is time."""
        if private.ranks.first and self.is_due(info.step, info.steps):
            values = {"learning rate": private.optimizer.param_groups[0]["lr"]}
            if math.isfinite(info.epsilon):
                values["epsilon"] = info.epsilon
            self.log(info.step, covered=values)

    def log(
        self,
        step: int,
        *,
        covered: Mapping[str, float] | None = None,
        not_covered: Mapping[str, float] | None = None,
    ) -> None:
        """Writes further numbers.

        Args:
            step: How many steps are done.
            covered: What costs no privacy: public, or computed from the weights alone. What
                ``private.step`` returns is marked as not covered in any case.
            not_covered: What was computed from records without noise, such as a loss.
        """
        marked = {
            f"{NOT_COVERED if isinstance(value, NotCovered) else mark}/{name}": float(value)
            for mark, values in ((COVERED, covered), (NOT_COVERED, not_covered))
            for name, value in (values or {}).items()
        }
        self._guarded(lambda: self.write(step, marked))

    def close(self) -> None:
        """Ends the logging."""
        self._guarded(self.end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:
            self._failed = True
            warnings.warn(
                f"{type(self).__name__} failed ({type(error).__name__}: {error}). The run goes on "
                "without it, and what it has written ends here.",
                LoggingFailed,
                stacklevel=4,
            )


class CSVLogger(Logger):
    """Writes lines of (step, name, value) to a file. One that is there is gone on with.

    Args:
        path: The file. Lines of steps that come again are dropped.
        every: How many steps lie between two points.

    Raises:
        ValueError: If the file is there and is no such log.
        OSError: If it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 10) -> None:
        super().__init__(every=every)
        self._path, self._begun = Path(path), False
        if next(iter(self._rows()), _HEADER) != _HEADER:
            raise ValueError(f"{path} is there, and is not a log of CSVLogger. Name another file.")
        with self._path.open("a"):
            pass

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if not self._begun:
            kept = [row for row in self._rows()[1:] if len(row) == 3 and int(row[0]) < step]
            self._add([_HEADER, *kept], "w")
            self._begun = True
        self._add([[step, name, value] for name, value in values.items()], "a")

    def _rows(self) -> list[list[str]]:
        if not self._path.exists():
            return []
        with self._path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    def _add(self, rows: list[Any], mode: str) -> None:
        with self._path.open(mode, newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


class TensorBoardLogger(Logger):
    """Writes scalars for TensorBoard. A folder that has some is gone on with.

    Args:
        folder: Where its event files go. Points of steps that come again are dropped.
        every: How many steps lie between two points.

    Raises:
        ImportError: Naming the extra, if TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int = 10) -> None:
        super().__init__(every=every)
        self._make = _needed("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder = os.fspath(folder)
        self._writer: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._writer = self._writer or self._make(self._folder, purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflowLogger(Logger):
    """Writes metrics to an MLflow run, which ends with the logger.

    Args:
        experiment: The experiment; it is made where there is none.
        run: What the run is known by, such as ``private.run``: a logger with the same goes on with
            the same MLflow run. Without it there is a new one.
        name: The MLflow run's name.
        uri: The tracking server or store; by default where MLflow's own settings say
            (``MLFLOW_TRACKING_URI``).
        every: How many steps lie between two points.

    Raises:
        ImportError: Naming the extra, if MLflow is not installed.
        Exception: As MLflow raises it, if the server cannot be reached.
    """

    def __init__(
        self,
        experiment: str = "plumbline",
        *,
        run: str | None = None,
        name: str | None = None,
        uri: str | None = None,
        every: int = 10,
    ) -> None:
        super().__init__(every=every)
        mlflow = _needed("mlflow", "mlflow")
        self._metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient(uri)
        there = self._client.get_experiment_by_name(experiment)
        number = (
            self._client.create_experiment(experiment) if there is None else there.experiment_id
        )
        tags = {} if run is None else {"plumbline.run": run}
        known = (
            self._client.search_runs([number], f"tags.`plumbline.run` = '{run}'") if tags else []
        )
        found = known[0] if known else self._client.create_run(number, run_name=name, tags=tags)
        self.run_id: str = found.info.run_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def end(self) -> None:
        self._client.set_terminated(self.run_id)


def _needed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This logger needs a package: pip install 'plumbline[{extra}]'."
        ) from error
