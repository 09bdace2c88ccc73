"""Runs: their folders, what interrupting does to them, several processes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch

from plumbline import Ledger
from plumbline.experiments import RunResult, run, running
from plumbline.experiments.loading import load_data
from plumbline.experiments.run_result import read_result
from plumbline.fairness import GroupReport
from plumbline.training import keeping
from plumbline.training.fitting import StepInfo
from tests.experiments.small import spec
from tests.training.ranks import in_ranks, values


def test_a_run_leaves_its_folder_behind(tmp_path: Path) -> None:
    done = run(spec(), tmp_path)
    folder = tmp_path / done.folder
    assert {path.name for path in folder.iterdir()} >= {
        "recipe.json",
        "versions.json",
        "metrics.jsonl",
        "ledger",
        "statement.txt",
        "result.json",
    }
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [5, 10]
    assert (
        rows[-1]["overall"] == json.loads((folder / "result.json").read_text())["report"]["overall"]
    )
    assert set(rows[0]["by_group"]) == {"male", "female"}
    assert 0 < rows[0]["epsilon"] <= done.epsilon
    # What the preprocessing computed from the training records is in the statement.
    assert "means and standard deviations of age" in done.statement


def test_rows_beyond_the_checkpoint_are_dropped_and_the_clock_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = GroupReport({"accuracy": 0.5}, {"a": {"accuracy": 0.5}}, {"a": 30}, minimum_size=20)
    now = [100.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(running, "evaluate_run", lambda *_: report)

    def log(steps_done: int) -> Any:
        return running._Log(
            Mock(steps_done=steps_done), Mock(), tmp_path, Mock(log_every=1), None, []
        )

    def rows() -> list[Any]:
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        return [(row["step"], row["epsilon"], row["seconds"]) for row in map(json.loads, lines)]

    first = log(0)
    for step in (1, 2):
        now[0] += 5
        first.after_step(MagicMock(), StepInfo(step, 4, lambda: float("inf"), 1e-5))
    assert rows() == [(1, "inf", 5.0), (2, "inf", 10.0)]
    again = log(1)
    assert [step for step, *_ in rows()] == [1]
    now[0] += 3
    assert again.seconds == 8.0


def test_a_finished_run_is_read_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(spec(), tmp_path)
    monkeypatch.setattr(running, "load_data", None)
    assert run(spec(), tmp_path) == first


def test_gradients_can_be_taken_of_few_records_at_once(tmp_path: Path) -> None:
    """The result is the same but for rounding, in a folder of its own, at the same epsilon."""
    whole, parts = run(spec(), tmp_path), run(spec(max_physical_batch=8), tmp_path)
    assert parts.folder != whole.folder
    assert parts.epsilon == whole.epsilon
    losses = [one.report.overall["loss"] for one in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    few = spec(max_physical_batch=8)
    private = running.started(few, load_data(few))
    batch = next(iter(private))
    assert max(len(chunk.indices) for chunk in batch.chunks()) == 8 < len(batch)


def test_a_method_without_a_guarantee_has_an_infinite_epsilon(tmp_path: Path) -> None:
    done = run(spec(method=0), tmp_path)
    assert done.epsilon == float("inf")
    assert read_result(tmp_path / done.folder) == done


def test_it_gets_the_noise_that_a_private_one_would(tmp_path: Path) -> None:
    budget = {"epsilon": 3.0, "delta": 1e-5, "steps": 5, "expected_batch_size": 32}
    methods = [{"name": "fairlens"}]
    done = run(spec(method=0, budget=budget, methods=methods, baseline=None), tmp_path)
    assert done.epsilon == float("inf")
    assert "FairLens" in done.statement


def test_an_interrupted_run_goes_on_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(spec(method=2), tmp_path / "whole")
    monkeypatch.setattr(keeping, "_SECONDS", 0.0)
    monkeypatch.setattr(keeping, "_SHARE", 0)

    def stop(step: int, steps: int) -> None:
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(spec(method=2), tmp_path / "cut", stop)
    folder = tmp_path / "cut" / whole.folder
    assert (folder / "checkpoint.pt").is_file()
    assert read_result(folder) is None
    resumed = run(spec(method=2), tmp_path / "cut")
    assert resumed.report == whole.report
    assert resumed.epsilon == whole.epsilon
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [5, 10]
    assert not (folder / "checkpoint.pt").exists()


def test_two_processes_make_one_run(tmp_path: Path) -> None:
    """Interrupted after six steps, saved once in between, and made to the end by one process."""

    def begin(rank: int) -> int:
        keeping._SECONDS = 0.0 if rank == 0 else 1e9  # rank 0's clock decides
        keeping._SHARE = 0
        run(spec(), tmp_path, on_progress=_interrupt_at(6))  # only rank 0 tells
        return rank

    ended = in_ranks(2, begin, tmp_path)
    assert isinstance(ended[0].error, KeyboardInterrupt)
    assert ended[1].error is not None
    folder = tmp_path / spec().folder
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["steps_done"] >= 4
    assert not (folder / "result.json").exists()

    def end(rank: int) -> RunResult:
        return run(spec(), tmp_path)

    first, second = values(in_ranks(2, end, tmp_path))
    assert first == second == read_result(folder)
    assert first.steps == 10
    assert "2 processes" in first.statement.replace("\n", " ")
    assert sum(count for _, count in Ledger.read(folder / "ledger").entries()) == 10


def _interrupt_at(last: int) -> Callable[[int, int], None]:
    def on_progress(step: int, steps: int) -> None:
        if step == last:
            raise KeyboardInterrupt

    return on_progress


def test_a_run_that_has_lost_many_steps_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten steps, those from the fourth on are charged ahead, and lost with the machine."""
    secure = spec()
    monkeypatch.setattr(type(secure), "random_seed", None)
    with pytest.raises(KeyboardInterrupt):
        run(secure, tmp_path, _interrupt_at(3))
    folder = tmp_path / secure.folder
    with Ledger.open(folder / "ledger") as ledger:
        (name,) = ledger.runs()
        release = ledger.entries()[0][0]
        ledger.charge(release, run=name, step=3, count=4)
    before = Ledger.read(folder / "ledger").entries()
    with pytest.raises(running.StepsLost, match=r"lost 4 of its 10 steps.*--accept-loss"):
        run(secure, tmp_path)
    assert Ledger.read(folder / "ledger").entries() == before
    done = run(secure, tmp_path, accept_loss=True)
    assert done.steps == 6
    assert "4 of the 10 planned steps were charged" in " ".join(done.statement.split())
    assert not list(folder.glob("checkpoint*"))
