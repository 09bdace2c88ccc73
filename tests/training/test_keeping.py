"""A run that goes on finds itself as it was: from its journal, its checkpoint, or what is left."""

import dataclasses
import errno
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import plumbline as pl
from plumbline import Ledger, Private
from plumbline.mechanism.ledger import LedgerError
from plumbline.mechanism.shared_ledger import SharedLedger
from plumbline.methods import METHODS
from plumbline.training import journal, keeping
from plumbline.training.checkpoint_file import CheckpointError
from plumbline.training.journal import journal_path, read
from tests.mechanism.forked import in_child
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


@pytest.mark.filterwarnings("ignore::plumbline.training.parameters.WeightsMoved")
def test_weights_that_the_loop_moves_itself_are_kept(checkpoint: Path) -> None:
    """A projection after every step, past autograd's notice."""
    run = Run()
    private = run.make(checkpoint=checkpoint)
    for _ in range(4):
        private.step(next(iter(private)))
        at = weights(run.model)
        for parameter in run.model.parameters():
            parameter.data.clamp_(-0.2, 0.2)
    assert private.moved  # which the statement says
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


def killed_after(
    steps: int, checkpoint: Path, last: Callable[[Private], object] = lambda _: None
) -> Path:
    """The ledger of a run that charged 50 steps ahead, and had no chance to refund any.

    Args:
        steps: How many it made.
        checkpoint: Its checkpoint.
        last: What it did last.
    """
    book = checkpoint.parent / "ledger"
    with Ledger.open(book, reserve=50) as ledger:
        run = Run(settings={"ledger": ledger})
        last(run.train(run.make(checkpoint=checkpoint), steps))
        as_killed = book.read_bytes()
    book.write_bytes(as_killed)
    return book


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9, 1.0])
def test_after_a_power_cut_nothing_is_given_back(
    left: float, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced is dropped: a part of the journal, or all of it."""
    book = killed_after(7, checkpoint)
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
    book = killed_after(7, checkpoint)
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
    book = killed_after(7, checkpoint)
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
    begun: list[bytes] = []

    def save(private: Private) -> None:
        begun.append(checkpoint.read_bytes())
        private.save()

    book = killed_after(7, checkpoint, save)
    checkpoint.write_bytes(begun[0])
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


def test_what_a_crash_can_cost_is_said_in_steps(checkpoint: Path, tmp_path: Path) -> None:
    """As they are lost: those charged ahead go with the power, and all without a checkpoint."""
    seeded = {"seed": 1, "deterministic": True}
    with Ledger.open(tmp_path / "ledger", reserve=7) as ledger:
        said = [
            Run(settings=settings).make(**more).crash_cost
            for settings, more in (
                ({}, {}),
                (seeded, {"checkpoint": tmp_path / "seeded.pt"}),
                ({"ledger": ledger}, {"checkpoint": checkpoint}),
            )
        ]
    assert said == [
        "A crash costs all of its steps: it has no checkpoint file.",
        "A crash costs no step: those since the last checkpoint are made again.",
        "A crash or a kill costs at most the step that it falls in; a power cut, the steps since "
        "the last checkpoint and up to 7 more.",
    ]


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


def killed(book: Path, ledger: Ledger) -> None:
    """Leaves the ledger as a process does that has no chance to refund."""
    at = shutil.copy(book, f"{book} as killed")
    ledger.close()
    os.replace(at, book)


def test_steps_marked_in_another_journal_are_not_given_back(
    checkpoint: Path, tmp_path: Path
) -> None:
    """A run goes on from a copy in the same process; its first journal does not show that."""
    book, other = tmp_path / "ledger", tmp_path / "copy.pt"
    ledger = Ledger.open(book, reserve=50)
    run = Run(settings={"ledger": ledger})
    run.train(run.make(checkpoint=checkpoint), 2)
    shutil.copy(checkpoint, other)
    run.train(run.make(checkpoint=other), 5)
    killed(book, ledger)
    with Ledger.open(book, reserve=50) as ledger:
        Run(settings={"ledger": ledger}).make(checkpoint=checkpoint)
        assert charged(book) >= 7


def test_a_step_charged_and_not_marked_leaves_a_whole_ledger(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "ledger"
    with Ledger.open(book, reserve=50) as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(checkpoint=checkpoint), 2)
        monkeypatch.setattr(private.keeper, "begin", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.train(private, 1)
        again = Run(settings={"ledger": ledger})
        resumed = again.train(again.make(checkpoint=checkpoint), 3)
        assert (resumed.steps_done, resumed.made) == (6, 5)
    assert charged(book) == 6


def test_a_ledger_put_back_to_what_it_was_is_noticed_by_the_journal(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Also where it is no older than the checkpoint."""
    book = tmp_path / "ledger"
    with Ledger.open(book) as ledger:
        run = Run(settings={"ledger": ledger})
        private = run.train(run.make(checkpoint=checkpoint), 2)
        old = book.read_bytes()
        run.train(private, 5)
    book.write_bytes(old)
    with (
        Ledger.open(book) as ledger,
        pytest.raises(LedgerError, match=r"charged 2 steps of the run.* 7 were begun"),
    ):
        Run(settings={"ledger": ledger}).make(checkpoint=checkpoint)


def test_of_two_objects_of_a_run_the_first_makes_no_step_more(
    checkpoint: Path, tmp_path: Path
) -> None:
    book = tmp_path / "ledger"
    ledger = Ledger.open(book, reserve=50)
    run, again = (Run(settings={"ledger": ledger}) for _ in range(2))
    first = run.train(run.make(checkpoint=checkpoint), 2)
    second = again.train(again.make(checkpoint=checkpoint), 3)
    at = weights(run.model)
    for act in (lambda: run.train(first, 1), first.save):
        with pytest.raises(CheckpointError, match="Another object or process goes on"):
            act()
    assert torch.equal(weights(run.model), at)
    again.train(second, 1)
    killed(book, ledger)
    with Ledger.open(book, reserve=50) as ledger:
        resumed = Run(settings={"ledger": ledger}).make(checkpoint=checkpoint)
        assert (resumed.made, resumed.charged) == (6, charged(book))
        assert charged(book) >= 6


def test_while_one_process_makes_a_run_no_other_goes_on_with_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    """It would be refunded steps that the first has charged ahead and makes a moment later."""
    ledger = SharedLedger.open(tmp_path / "ledger", reserve=50)
    run = Run(settings={"ledger": ledger})
    private = run.train(run.make(checkpoint=checkpoint), 2)

    def goes_on() -> str:
        with SharedLedger.open(tmp_path / "ledger", reserve=50) as own:
            try:
                Run(settings={"ledger": own}).make(checkpoint=checkpoint)
            except CheckpointError as error:
                return str(error)
            return "it went on"

    assert f"is being made by process {os.getpid()}" in in_child(goes_on)
    run.train(private, 1)
    assert charged(tmp_path / "ledger") == STEPS  # nothing was refunded
    del private  # as if the process had ended
    gc.collect()
    assert in_child(goes_on) == "it went on"


@pytest.mark.parametrize("book", [True, False])
def test_a_fork_of_a_run_makes_no_step(checkpoint: Path, tmp_path: Path, book: bool) -> None:
    settings = {"ledger": Ledger.open(tmp_path / "ledger", reserve=50)} if book else {}
    run = Run(settings=settings)
    private = run.train(run.make(checkpoint=checkpoint), 2)

    def steps() -> str:
        at = weights(run.model)
        with pytest.raises((CheckpointError, LedgerError), match="is a fork of it"):
            run.train(private, 1)
        return "moved" if not torch.equal(weights(run.model), at) else "did not move"

    assert in_child(steps) == "did not move"
    run.train(private, 1)
    assert read(checkpoint, private=False).begun == 3
