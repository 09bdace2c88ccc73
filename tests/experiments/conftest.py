"""A finished run, made once; tests take copies of it to damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plumbline.experiments import RunSpec, run
from tests.experiments.small import recipe


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
