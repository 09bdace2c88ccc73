"""The command line, called in a folder of the test's own."""

from pathlib import Path

import pytest

from tests.cli.calling import Called


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Called:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLUMBLINE_DATA", str(tmp_path / "data"))
    return Called(monkeypatch, capsys)
