"""The commands on a target that is a number."""

import csv
from pathlib import Path

import pytest

from tests.cli.calling import Called


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    rows = [f"{20 + place % 70},{60 * (20 + place % 70) + place % 7}" for place in range(600)]
    path.write_text("age,cost\n" + "\n".join(rows) + "\n")
    return path


def test_the_command_line_asks_and_predicts(call: Called, table: Path) -> None:
    base = ["train", "--data", str(table), "--target", "cost", "--from-data", "--epochs", "1"]
    assert call(*base) == 2
    assert "are they amounts or classes?" in call.err
    assert call(*base, "--task", "regression", "--batch", "200", "--seed", "0") == 0
    assert "RMSE" in call.out
    (run,) = (table.parent / "runs" / "visits").glob("Global-Adapt-*")
    assert call("predict", str(run), "--data", str(table), "--out", "scored.csv") == 0
    with Path("scored.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 600
    assert all(0 <= float(row["prediction"]) < 6000 for row in rows)
