from pathlib import Path

import pytest

from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import GaussianQuery, PoissonSampling, StepRelease
from plumbline.mechanism.rounding import rounded_up
from plumbline.mechanism.shared_ledger import SharedLedger
from tests.cli.calling import Called


def written(path: Path, noise: float = 2.0) -> Path:
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=noise)
    release = StepRelease(sampling=PoissonSampling(rate=0.1), queries=(query,)).to_dict()
    with Ledger.open(path, limit=(5.0, 1e-5) if noise else None) as ledger:
        for step in range(3):
            ledger.charge(release, run="one", step=step)
        ledger.charge(release, run="two", step=0)
    return path


def test_what_each_run_and_all_of_them_spent(call: Called, tmp_path: Path) -> None:
    path = written(tmp_path / "ledger")
    assert call("ledger", path, "--json") == 0
    found = call.json
    assert found["epsilon"] == pytest.approx(Ledger.read(path).epsilon(1e-5))
    assert {run: row["steps"] for run, row in found["runs"].items()} == {"one": 3, "two": 1}
    assert found["runs"]["two"]["epsilon"] < found["runs"]["one"]["epsilon"] < found["epsilon"]
    assert found["limit"] == [5.0, 1e-5]
    assert call("ledger", tmp_path) == 0  # the folder that has it
    assert f"at delta 1e-5: {rounded_up(found['epsilon'], 4)}." in call.out
    assert "budget: epsilon 5" in call.out
    assert call("ledger", path, "--delta", "1") == 2


def test_runs_that_are_alike_are_one_line(call: Called, tmp_path: Path) -> None:
    query = GaussianQuery(name="gradient", sensitivity=1.0, noise_multiplier=2.0)
    release = StepRelease(sampling=PoissonSampling(rate=0.1), queries=(query,)).to_dict()
    with SharedLedger.open(tmp_path / "ledger") as ledger:
        for run, part in (("a", "trial"), ("b", "trial"), ("c", "run")):
            ledger.describe(run, {"title": "DP-SGD, seed 0", "part": part})
            ledger.charge(release, run=run, step=0)
    assert call("ledger", tmp_path) == 0
    lines = [line.split() for line in call.out.splitlines() if line.startswith("DP-SGD")]
    assert [(line[-1], line[3:5]) for line in lines] == [
        ("run", ["1", lines[1][-2]]),
        ("trial", ["(2", "times)"]),
    ]


def test_a_run_without_noise(call: Called, tmp_path: Path) -> None:
    path = written(tmp_path / "ledger", noise=0.0)
    assert call("ledger", path, "--json") == 0
    assert call.json["epsilon"] == "inf"
    assert call("ledger", path) == 0
    assert "at delta 1e-5: infinite." in call.out
    assert "no guarantee" in call.out
