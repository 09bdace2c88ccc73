"""A run that goes on finds itself as it was: from its journal, its checkpoint, or what is left."""

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import plumbline as pl
from plumbline import Ledger
from plumbline.methods import METHODS
from plumbline.training import journal, keeping
from plumbline.training.checkpoint_file import CheckpointError
from plumbline.training.journal import journal_path, read
from tests.training.runs import BUDGET, RECORDS, STEPS, Run, charged, weights

OTHER_RECORDS = ("batch_clipping", "self_augmented")  # need images; they keep nothing
FULL = dataclasses.replace(BUDGET, expected_batch_size=RECORDS)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "run.pt"


def settings_for(name: str) -> dict[str, Any]:
    method = METHODS[name].make(**METHODS[name].example())
    settings: dict[str, Any] = {"method": method}
    if method.needs_groups:
        settings["sensitive_features"] = torch.arange(RECORDS) % 2
    if method.keeps_records:
        settings["budget"] = FULL
    return settings


@pytest.mark.parametrize("name", [one for one in METHODS if one not in OTHER_RECORDS])
def test_every_method_goes_on_where_it_was(name: str, checkpoint: Path) -> None:
    """Its weights, its optimizer, its state and its average, from the journal alone."""
    settings = {**settings_for(name), "averaging": 0.9}
    torch.manual_seed(1)
    run = Run("adam and schedulers", settings)
    private = run.train(run.make(checkpoint=checkpoint), 3)
    again = Run("adam and schedulers", settings)
    resumed = again.make(checkpoint=checkpoint)
    assert (resumed.steps_done, resumed.made, resumed.lost) == (3, 3, 0)
    assert torch.equal(weights(again.model), weights(run.model))
    pairs = [
        (private.optimizer.state_dict(), resumed.optimizer.state_dict()),
        (private.method.state_dict(), resumed.method.state_dict()),
        (private.method.private_state_dict(), resumed.method.private_state_dict()),
        (private.average.state_dict(), resumed.average.state_dict()),  # type: ignore[union-attr]
        *((a.state_dict(), b.state_dict()) for a, b in zip(run.schedulers, again.schedulers)),  # noqa: B905
    ]
    for before, after in pairs:
        assert str(before) == str(after)
    kept = journal_path(checkpoint, private=private.method.keeps_records)
    assert kept.exists()
    again.train(resumed, 1)


def test_weights_that_the_loop_moves_itself_are_kept(checkpoint: Path) -> None:
    """A projection after every step, past autograd's notice."""
    run = Run()
    private = run.make(checkpoint=checkpoint)
    for _ in range(4):
        private.step(next(iter(private)))
        at = weights(run.model)
        for parameter in run.model.parameters():
            parameter.data.clamp_(-0.2, 0.2)
    again = Run()
    resumed = again.make(checkpoint=checkpoint)
    assert resumed.made == 4
    assert torch.equal(weights(again.model), at)  # as the last step left them


def test_a_rate_that_the_loop_sets_itself_is_kept(checkpoint: Path) -> None:
    run = Run()
    private = run.make(checkpoint=checkpoint)
    for rate in (0.3, 0.05, 0.7):
        run.optimizer.param_groups[0]["lr"] = rate
        private.step(next(iter(private)))
    again = Run()
    again.make(checkpoint=checkpoint)
    assert torch.equal(weights(again.model), weights(run.model))
    assert again.optimizer.param_groups[0]["lr"] == 0.7


def test_a_step_that_fails_after_its_charge_is_lost_and_its_number_too(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(checkpoint=checkpoint), 2)
        with monkeypatch.context() as patch:
            patch.setattr(private._answering(), "answer", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run.train(private, 1)
        assert (private.steps_done, private.made, private.lost) == (3, 2, 1)
        run.train(private, 2)
    with Ledger.open(tmp_path / "ledger") as ledger:
        again = Run(settings={"ledger": ledger})
        resumed = again.make(checkpoint=checkpoint)
        assert (resumed.steps_done, resumed.made, resumed.lost) == (5, 4, 1)
        assert "1 of the 12 planned steps were charged" in " ".join(resumed.statement().split())
        assert torch.equal(weights(again.model), weights(run.model))


def test_a_step_in_flight_is_marked_before_its_answer_is_drawn(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that is killed as it answers would be refunded a step that may have been seen."""
    run = Run()
    private = run.make(checkpoint=checkpoint)
    answers, begun = private._answering(), []
    answer = answers.answer

    def watched(*given: Any) -> Any:
        begun.append(read(checkpoint, private=False).begun)
        return answer(*given)

    monkeypatch.setattr(answers, "answer", watched)
    run.train(private, 3)
    assert begun == [1, 2, 3]


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9, 1.0])
def test_after_a_power_cut_nothing_is_given_back(
    left: float, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced is dropped: a part of the journal, or all of it."""
    book = tmp_path / "ledger"
    ledger = Ledger.open(book, reserve=50)
    run = Run(settings={"ledger": ledger})
    run.train(run.make(checkpoint=checkpoint), 7)
    at = shutil.copy(book, tmp_path / "as synced")  # the process has no chance to refund
    ledger.close()
    os.replace(at, book)
    path = journal_path(checkpoint, private=False)
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data))])
    monkeypatch.setattr(journal, "_boot", lambda: "after the power cut")
    assert charged(book) == STEPS  # reserved are all that the run has
    with Ledger.open(book, reserve=50) as ledger:
        again = Run(settings={"ledger": ledger})
        resumed = again.make(checkpoint=checkpoint)
        assert resumed.charged == STEPS
        assert len(resumed) == 0
        assert resumed.made == STEPS - resumed.lost
        assert resumed.made == (7 if left == 1 else len(read_releases(data, left, tmp_path)))
    assert charged(book) == STEPS


def read_releases(data: bytes, left: float, folder: Path) -> list[Any]:
    """What a part of a journal shows."""
    other = folder / "other.pt"
    journal_path(other, private=False).write_bytes(data[: int(left * len(data))])
    return list(read(other, private=False).releases)


def test_steps_charged_ahead_and_never_begun_are_given_back(
    checkpoint: Path, tmp_path: Path
) -> None:
    book = tmp_path / "ledger"
    ledger = Ledger.open(book, reserve=50)
    run = Run(settings={"ledger": ledger})
    run.train(run.make(checkpoint=checkpoint), 7)
    at = shutil.copy(book, tmp_path / "as killed")
    ledger.close()
    os.replace(at, book)
    with Ledger.open(book, reserve=50) as ledger:
        again = Run(settings={"ledger": ledger})
        resumed = again.make(checkpoint=checkpoint)
        assert (resumed.steps_done, resumed.charged, resumed.lost) == (7, 7, 0)
        assert charged(book) == 7
        again.train(resumed)
        assert resumed.made == STEPS
    assert charged(book) == STEPS


@pytest.mark.parametrize("seed", [None, 7])
def test_a_run_whose_journal_was_lost_uses_no_number_again(
    seed: int | None, checkpoint: Path, tmp_path: Path
) -> None:
    """The ledger knows how many steps there were; with a seed, their noise was used too."""
    book = tmp_path / "ledger"
    with Ledger.open(book) as ledger:
        run = Run(settings={"ledger": ledger, "seed": seed})
        run.train(run.make(checkpoint=checkpoint), 5)
    journal_path(checkpoint, private=False).unlink()
    with Ledger.open(book) as ledger:
        again = Run(settings={"ledger": ledger, "seed": seed})
        resumed = again.make(checkpoint=checkpoint)
        assert (resumed.steps_done, resumed.made, resumed.lost) == (5, 0, 5)
        again.train(resumed)
    assert charged(book) == STEPS


def test_a_copied_folder_gets_nothing_back(checkpoint: Path, tmp_path: Path) -> None:
    """Else the original and its copy would both be given the same steps."""
    book = tmp_path / "ledger"
    ledger = Ledger.open(book, reserve=50)
    run = Run(settings={"ledger": ledger})
    run.train(run.make(checkpoint=checkpoint), 7)
    at = shutil.copy(book, tmp_path / "as killed")
    ledger.close()
    os.replace(at, book)
    other = tmp_path / "copy"
    other.mkdir()
    for one in (checkpoint, journal_path(checkpoint, private=False)):
        shutil.copy2(one, other)
    with Ledger.open(book, reserve=50) as ledger:
        resumed = Run(settings={"ledger": ledger}).make(checkpoint=other / checkpoint.name)
        assert (resumed.made, resumed.lost, len(resumed)) == (7, STEPS - 7, 0)
    assert charged(book) == STEPS


def test_without_a_ledger_the_step_in_flight_counts(checkpoint: Path) -> None:
    run = Run()
    private = run.train(run.make(checkpoint=checkpoint), 3)
    private.keeper.begin(3)
    resumed = Run().make(checkpoint=checkpoint)
    assert (resumed.steps_done, resumed.made, resumed.charged, resumed.lost) == (4, 3, 4, 1)


def test_an_older_checkpoint_put_back_loses_steps_and_repeats_none(
    checkpoint: Path, tmp_path: Path
) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(checkpoint=checkpoint), 2)
        private.save()
        old = checkpoint.read_bytes()
        run.train(private, 3)
        private.save()
        run.train(private, 2)
        checkpoint.write_bytes(old)
        again = Run(settings={"ledger": ledger})
        resumed = again.make(checkpoint=checkpoint)
        assert (resumed.steps_done, resumed.made, resumed.lost) == (7, 2, 5)
        again.train(resumed)
        assert charged(tmp_path / "ledger") == STEPS


def test_an_older_checkpoint_put_back_gets_nothing_back_that_was_made(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Nothing is in the journal, since a later checkpoint had all of it."""
    book = tmp_path / "ledger"
    ledger = Ledger.open(book, reserve=50)
    run = Run(settings={"ledger": ledger})
    private = run.make(checkpoint=checkpoint)
    old = checkpoint.read_bytes()
    run.train(private, 7)
    private.save()
    at = shutil.copy(book, tmp_path / "as killed")
    ledger.close()
    os.replace(at, book)
    checkpoint.write_bytes(old)
    with Ledger.open(book, reserve=50) as ledger:
        resumed = Run(settings={"ledger": ledger}).make(checkpoint=checkpoint)
        assert (resumed.steps_done, resumed.made, resumed.charged) == (7, 0, 7)


def test_a_step_that_cannot_be_marked_is_lost_and_not_asked(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(tmp_path / "ledger") as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(checkpoint=checkpoint), 2)
        before = weights(run.model)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", full)
            patch.setattr(private._answering(), "answer", None)  # who asks fails otherwise
            with pytest.raises(CheckpointError, match="Free some space"):
                run.train(private, 1)
        assert torch.equal(weights(run.model), before)
        run.train(private)
        assert (private.steps_done, private.made, private.lost) == (STEPS, STEPS - 1, 1)
    assert charged(tmp_path / "ledger") == STEPS


def test_a_checkpoint_takes_the_journals_place_when_it_is_time(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(keeping.time, "monotonic", lambda: clock[0])
    run = Run()
    private = run.make(checkpoint=checkpoint)

    def stored(seconds: float) -> int:
        clock[0] += seconds
        private.step(next(iter(private)))
        found: int = torch.load(checkpoint, weights_only=True)["made"]
        return found

    assert stored(10) == 0
    assert stored(11) == 2  # after 20 seconds
    monkeypatch.setattr(keeping, "_BYTES", 1000)
    private.keeper._took = 0.1
    assert stored(1) == 2  # it would take more than a twentieth of the time
    assert stored(1.5) == 4
    assert read(checkpoint, private=False).releases == []


def test_a_repeatable_run_has_no_journal(checkpoint: Path) -> None:
    run = Run(settings={"seed": 1, "deterministic": True})
    run.train(run.make(checkpoint=checkpoint), 2)
    assert sorted(one.name for one in checkpoint.parent.iterdir()) == ["run.pt"]


def test_a_finished_run_is_forgotten(checkpoint: Path) -> None:
    run = Run()
    run.train(run.make(checkpoint=checkpoint), 2)
    keeping.forget(checkpoint)
    assert list(checkpoint.parent.iterdir()) == []


def test_users_are_the_unit_and_public_data_is_there_too(checkpoint: Path) -> None:
    inputs = torch.randn(10, 6)
    public = pl.PublicData((inputs, torch.zeros(10, dtype=torch.long)), weight=0.5, batch_size=4)
    settings = {"user_ids": torch.arange(RECORDS) // 2, "public": public}
    run = Run(settings=settings)
    run.train(run.make(checkpoint=checkpoint), 3)
    again = Run(settings=settings)
    again.make(checkpoint=checkpoint)
    assert torch.equal(weights(again.model), weights(run.model))
