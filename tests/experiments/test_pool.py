"""Runs in processes: the same results as here, progress, nothing repeated, a clean end."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.experiments import RunSpec
from plumbline.experiments.pool import Progress, Workers
from tests.experiments.small import recipe


def specs(seeds: int = 2) -> list[RunSpec]:
    one = recipe()
    return [RunSpec(one, one.methods[1], seed) for seed in range(seeds)]


def test_runs_are_told_step_by_step_and_counted(tmp_path: Path) -> None:
    on_progress: list[Progress] = []
    with Workers(1) as workers:
        results = workers.run(
            specs(),
            tmp_path,
            lambda p: on_progress.append(Progress(p.done, p.total, dict(p.running))),
        )
    assert [result.seed for result in results] == [0, 1]
    assert (on_progress[0].done, on_progress[0].total) == (0, 2)
    assert on_progress[-1] == Progress(2, 2, {})
    assert any("dpsgd, seed 0" in one.running for one in on_progress)


def test_processes_give_what_this_one_does_and_repeat_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(2) as workers:
        there = workers.run(specs(), tmp_path / "there")
    assert not multiprocessing.active_children()
    with Workers(1) as workers:
        here = workers.run(specs(), tmp_path / "here")
    for one, other in zip(there, here, strict=True):
        # One thread a process, another number here: sums round differently.
        loss = one.report.overall["loss"]
        assert loss == pytest.approx(other.report.overall["loss"], rel=1e-4)
    monkeypatch.setattr(Workers, "_in_processes", lambda *_: pytest.fail("repeated"))
    with Workers(2) as workers:
        assert workers.run(specs(), tmp_path / "there") == there


@pytest.mark.slow
def test_a_failing_run_ends_the_others(tmp_path: Path) -> None:
    wrong = {"name": "sgd", "learning_rate": 0.1, "options": {"momentum": -1.0}}  # seen by torch
    one = recipe(optimizer=wrong)
    failing = [RunSpec(one, one.methods[1], seed) for seed in range(2)]
    with pytest.raises(ValueError, match="momentum"), Workers(2) as workers:
        workers.run(failing, tmp_path)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, signal\n"
        "from pathlib import Path\n"
        "from plumbline.experiments.pool import Workers\n"
        "from tests.experiments.small import recipe\n"
        "from plumbline.experiments import RunSpec\n"
        "if __name__ == '__main__':\n"
        "    one = recipe(budget={**recipe().budget.model_dump(), 'steps': 10**6})\n"
        "    specs = [RunSpec(one, one.methods[1], seed) for seed in range(2)]\n"
        "    def on_progress(progress):\n"
        "        if progress.running:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    with Workers(2) as workers:\n"
        f"        workers.run(specs, Path({str(tmp_path)!r}), on_progress)\n"
    )
    root = Path(__file__).parents[2]
    held, kept = os.pipe()  # which the workers inherit: it ends when the last of them does
    parent = subprocess.Popen(
        [sys.executable, script], env={**os.environ, "PYTHONPATH": str(root)}, stdout=kept
    )
    os.close(kept)
    assert parent.wait() == -signal.SIGKILL
    assert os.read(held, 1) == b""
    os.close(held)


def test_there_must_be_a_worker() -> None:
    with pytest.raises(ValueError, match="workers is 0; there must be at least 1"):
        Workers(0)
