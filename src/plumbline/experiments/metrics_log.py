"""The metrics of a model along a run, as rows of a file, and the run's clock.

A run that was interrupted goes on where its checkpoint is: rows beyond it are dropped, since they
come again, and the clock goes on from the last row that is left.
"""

from __future__ import annotations

import time
from pathlib import Path

from plumbline.experiments.files import METRICS, append_row, kept_rows
from plumbline.fairness import GroupReport, to_json
from plumbline.training.fitting import StepInfo


class MetricsLog:
    """The rows of a run.

    Args:
        folder: The run's folder.
        steps_done: Where the run stands.
    """

    def __init__(self, folder: Path, steps_done: int) -> None:
        self._path = folder / METRICS
        rows = kept_rows(self._path, steps_done)
        self._earlier = float(rows[-1]["seconds"]) if rows else 0.0
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the run has taken, all sessions together."""
        return self._earlier + time.monotonic() - self._start

    def add(self, info: StepInfo, report: GroupReport) -> None:
        """A row for the step that was just made."""
        row = {
            "step": info.step,
            "epsilon": to_json(info.epsilon),
            "seconds": self.seconds,
            "overall": to_json(report.overall),
            "by_group": to_json(report.by_group),
        }
        append_row(self._path, row)
