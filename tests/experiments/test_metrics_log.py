"""Rows of metrics along a run: what an interruption leaves, and a clock that goes on."""

import json
from pathlib import Path

import pytest

from plumbline.experiments import metrics_log
from plumbline.experiments.files import METRICS
from plumbline.experiments.metrics_log import MetricsLog
from plumbline.fairness import GroupReport
from plumbline.training import StepInfo

REPORT = GroupReport(
    overall={"accuracy": 0.5}, by_group={"a": {"accuracy": 0.5}}, sizes={"a": 30}, minimum_size=20
)


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def test_rows_beyond_the_checkpoint_are_dropped_and_the_clock_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(metrics_log.time, "monotonic", lambda: now[0])
    log = MetricsLog(tmp_path, 0)
    for step in (1, 2):
        now[0] += 5
        log.add(StepInfo(step, 4, float("inf"), 1e-5), REPORT)
    assert [(row["step"], row["epsilon"], row["seconds"]) for row in rows(tmp_path)] == [
        (1, "inf", 5.0),
        (2, "inf", 10.0),
    ]
    again = MetricsLog(tmp_path, 1)
    assert [row["step"] for row in rows(tmp_path)] == [1]
    now[0] += 3
    assert again.seconds == 8.0
