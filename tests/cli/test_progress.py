"""Progress of several runs, on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from plumbline.cli import progress
from plumbline.experiments.pool import Progress


def test_bars_have_a_line_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(progress, "aside", terminal)
    with progress.watching() as watch:
        watch(Progress(1, 4, {"DPSGD, seed 0": (5, 10), "a" * 60 + ", seed 1": (1, 10)}))
        assert isinstance(watch, progress.BarWatch)
        shown = Console(file=io.StringIO(), width=80)
        shown.print(watch._bars.get_renderable())
        text = shown.file.getvalue()  # type: ignore[attr-defined]
        assert "1 of 4" in text
        assert "5 of 10" in text
        assert len(text.splitlines()) == 3
        watch(Progress(2, 4, {}))
        assert [task.description for task in watch._bars.tasks] == ["runs"]
    assert (watch.done, watch.total) == (2, 4)


def test_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert not progress.aside.is_terminal
    with progress.watching() as watch:
        for done in (0, 0, 1):
            watch(Progress(done, 2, {}))
    assert capsys.readouterr().err.splitlines() == ["0 of 2 runs are done", "1 of 2 runs are done"]
