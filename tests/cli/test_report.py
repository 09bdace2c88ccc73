"""``plumbline report``: the page of a run on a person's own table."""

import sys
from pathlib import Path

import pytest

from plumbline.report.reading import read
from tests.cli.calling import Called, people

RUN = [
    "train", "--from-data", "--data", "people.csv", "--target", "income", "--sensitive", "sex",
    "--epochs", "3", "--batch", "80", "--out", "my run",
]  # fmt: skip


def test_a_run_on_ones_own_table(
    call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people(tmp_path / "people.csv")
    monkeypatch.setattr(sys, "argv", ["plumbline", *RUN])
    assert call(*RUN) == 0
    assert "plumbline predict 'my run/people/" in call.out
    assert call("report", "my run/people", "--json") == 0
    page = Path(call.json["page"]).read_text()
    assert "people.csv" in page
    assert "plumbline train people.toml" in page
    assert "target = &quot;income&quot;" in page
    assert "operating system&#x27;s entropy" in page
    study = read(tmp_path / "my run" / "people")
    assert (study.single, study.groups) == (True, ["f", "m"])
    assert 0 < study.row(study.titles[0]).epsilon <= 3
    assert call("audit", "membership", "my run/people", "--replicates", "10") == 0
    assert "AUC" in call.out


def test_a_run_that_is_not_finished(call: Called, tmp_path: Path) -> None:
    people(tmp_path / "people.csv")
    assert call(*RUN) == 0
    (folder,) = (tmp_path / "my run" / "people").iterdir()
    (folder / "result.json").unlink()
    assert call("report", folder) == 2
    assert "is not finished; start it again" in call.err
