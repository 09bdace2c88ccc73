"""Runs of every kind, made once, and their exports."""

from pathlib import Path

import pytest

from plumbline.experiments.exporting import Export, export
from tests.experiments.exporting.runs import CASES, trained


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a run of each case."""
    return {
        name: trained(tmp_path_factory.mktemp("run"), **options) for name, options in CASES.items()
    }


@pytest.fixture(scope="session")
def exports(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Export]:
    """Their exports; that of the first has a torch.export program."""
    root = tmp_path_factory.mktemp("exports")
    return {
        name: export(run, root / name.replace(" ", "-"), program=name == "two classes")
        for name, run in runs.items()
    }
