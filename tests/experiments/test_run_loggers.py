"""The loggers of a run, by name: what they write, and that none of them can cost the run."""

import csv
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from plumbline.experiments import run, run_loggers
from plumbline.training.loggers import CSVLogger, LoggingFailed
from tests.experiments.small import spec


def test_a_run_is_logged_and_its_numbers_are_marked(tmp_path: Path) -> None:
    done = run(spec(), tmp_path, log=["csv", "csv"])
    with (tmp_path / done.folder / "log.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    steps: dict[str, list[int]] = {}
    for row in found:
        steps.setdefault(row["name"], []).append(int(row["step"]))
    assert steps == {
        "covered/learning rate": [10],
        "covered/epsilon": [10],
        "not covered/held out/accuracy": [5, 10],
        "not covered/held out/loss": [5, 10],
    }
    (spent,) = (float(row["value"]) for row in found if row["name"] == "covered/epsilon")
    assert spent == pytest.approx(done.epsilon, rel=1e-2)


def test_a_full_disk_of_the_log_does_not_cost_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(CSVLogger, "write", full)
    with pytest.warns(LoggingFailed, match="CSVLogger failed .*No space left"):
        done = run(spec(), tmp_path, log=["csv"])
    assert done.steps == 10


@pytest.mark.parametrize(
    ("log", "error", "message"),
    [
        (["cvs"], ValueError, "log has 'cvs'; there are csv, tensorboard, mlflow"),
        (["mlflow"], ImportError, r"plumbline\[mlflow\]"),
    ],
)
def test_what_is_not_there_is_refused_before_the_run(
    log: Any, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr(
        run_loggers, "find_spec", lambda name: None if name == "mlflow" else right(name)
    )
    with pytest.raises(error, match=message):
        run(spec(), tmp_path, log=log)
    assert list(tmp_path.iterdir()) == []
