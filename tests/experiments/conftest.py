"""A finished run, made once, of which tests take copies to damage; and a small reproduction."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plumbline.experiments import Reproduction, RunSpec, reproduce, run
from plumbline.experiments import papers as papers_files
from plumbline.experiments.papers import Size
from plumbline.experiments.studies import STUDIES, Job, Measured, Measurements
from tests.experiments.small import recipe
from tests.experiments.small_paper import HEAD, PLAN, SPREAD


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of DP-SGD on Adult, six steps long."""
    one = recipe(
        log_every=6,
        model={"name": "adult-mlp", "options": {"hidden": 8}},
        budget={"noise_multiplier": 1.0, "delta": 1e-5, "steps": 6, "expected_batch_size": 32},
    )
    root = tmp_path_factory.mktemp("finished")
    return root / run(RunSpec(one, one.methods[1], 0), root).folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes a copy of the finished run's folder, under its own name."""

    def copy() -> Path:
        return Path(shutil.copytree(finished, tmp_path / finished.name))

    return copy


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of reproductions."""
    monkeypatch.setattr(papers_files, "recipes_folder", lambda: tmp_path / "recipes")
    (tmp_path / "recipes" / "papers").mkdir(parents=True)
    return tmp_path / "recipes" / "papers"


@pytest.fixture
def judged(papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Judges measurements that are given against a published file that is given."""

    def judge(
        published: str,
        paper: dict[str, float],
        tuned: dict[str, float] | None = None,
        *,
        size: Size = "paper",
        plan: str = PLAN,
        aim: str = "accuracy",
    ) -> Reproduction:
        def fake(job: Job) -> Measurements:
            columns = [
                {key: over_seeds(value, key) for key, value in column.items()}
                for column in (paper, tuned or {})
            ]
            notes = (f"seeds {job.settings['seeds']}",)
            return Measurements(columns[0], columns[1], notes, aim)

        monkeypatch.setitem(STUDIES, "fake", fake)
        (papers / "small.toml").write_text(plan)
        (papers / "small.published.toml").write_text(HEAD + published)
        return reproduce("small", size, tmp_path / "runs")

    return judge


def over_seeds(mean: float, key: str) -> Measured:
    """Three seeds about a mean; one row's rise where another's fall."""
    if math.isnan(mean):
        return Measured(mean)
    signs = 1 if key.startswith("new") else -1
    return Measured.of([mean + signs * one for one in SPREAD])
