"""A disk that is full or read-only: an error in words, and the run goes on from what was there."""

import errno
import os
from pathlib import Path

import pytest
import torch

from plumbline import Ledger, Private
from plumbline.mechanism.ledger import LedgerError
from plumbline.training.checkpoint_file import CheckpointError, remove_pair, write_pair
from tests.disks import PAGE, SmallDisk, small_disk
from tests.training.runs import STEPS, Run, charged, weights

__all__ = ["small_disk"]
SETTINGS = {"seed": 3, "deterministic": True}


def test_a_full_disk_leaves_the_previous_checkpoint(small_disk: SmallDisk) -> None:
    path = small_disk.path / "checkpoint.pt"
    with Ledger.open(small_disk.path / "ledger") as ledger:
        run = Run("sgd", {**SETTINGS, "ledger": ledger})
        private = run.train(run.make(), 3)
        private.save(path)
        before = path.read_bytes()
        saved = weights(run.model)
        run.train(private, 1)
        small_disk.fill()
        with pytest.raises(CheckpointError, match="No space left on device") as error:
            private.save(path)
    assert str(path) in str(error.value)
    assert "Free some space on the disk, then try again" in str(error.value)
    assert path.read_bytes() == before
    assert {one.name for one in small_disk.path.iterdir()} == {"ballast", "checkpoint.pt", "ledger"}
    # It goes on from there, the charged step is made again, and is not charged again.
    small_disk.empty()
    with Ledger.open(small_disk.path / "ledger") as ledger:
        run = Run("sgd", {**SETTINGS, "ledger": ledger})
        private = run.resume(path)
        assert private.steps_done == 3
        assert torch.equal(weights(run.model), saved)
        run.train(private)
    assert charged(small_disk.path / "ledger") == STEPS


def test_a_step_that_cannot_be_charged_is_not_made(small_disk: SmallDisk) -> None:
    path = small_disk.path / "ledger"
    with Ledger.open(path) as ledger:
        run = Run("sgd", {**SETTINGS, "ledger": ledger})
        private = run.make()
        others = 0
        while path.stat().st_size % PAGE < PAGE - 900:  # the last page has room for a few lines
            ledger.charge(private.plan.release.to_dict(), run="another", step=others)
            others += 1
        small_disk.fill()
        done, before, error = _until_refused(private, run)
        assert 0 < done < STEPS
        assert str(path) in error
        assert "No space left on device" in error
        assert "Free some space on the disk" in error
        assert torch.equal(weights(run.model), before)
        private.close()
    assert charged(path) - others == done  # whole, and nothing more than was released
    small_disk.empty()
    torch.manual_seed(0)  # as every test begins: the same run again
    with Ledger.open(path) as ledger:
        run = Run("sgd", {**SETTINGS, "ledger": ledger})
        run.train(run.make())
    assert charged(path) - others == STEPS


def _until_refused(private: Private, run: Run) -> tuple[int, torch.Tensor, str]:
    """Steps until one cannot be charged: how many were made, the weights then, and the words."""
    for done, batch in enumerate(private):
        before = weights(run.model)
        try:
            private.step(batch)
        except LedgerError as error:
            return done, before, str(error)
    pytest.fail("every step was charged")


def test_a_read_only_folder(small_disk: SmallDisk) -> None:
    path, book = small_disk.path / "checkpoint.pt", small_disk.path / "ledger"
    run = Run("sgd", SETTINGS)
    private = run.train(run.make(), 2)
    private.save(path)
    Ledger.open(book).close()
    before = path.read_bytes(), book.read_bytes()
    small_disk.make_read_only()
    with pytest.raises(CheckpointError, match=r"Read-only file system.*that you may write to"):
        private.save(path)
    with pytest.raises(LedgerError, match=r"Read-only file system.*that you may write to"):
        Ledger.open(book)
    assert (path.read_bytes(), book.read_bytes()) == before
    assert Run("sgd", SETTINGS).resume(path).steps_done == 2
    assert Ledger.read(book).entries() == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_every_call_to_the_disk_may_fail(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    run = Run("sgd", SETTINGS)
    private = run.make()
    private.save(path)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(CheckpointError, match="checkpoint that was there before is unchanged"):
            private.save(path)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint.pt"]
    private.close()


def test_a_checkpoint_is_removed_with_the_state_of_single_records(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write_pair(path, b"all", "token", b"of single records")
    (tmp_path / "checkpoint.pt.PRIVATE.new").write_bytes(b"of single records")
    (tmp_path / "model.pt").write_bytes(b"weights")
    remove_pair(path)
    remove_pair(path)  # there is nothing left, which is no error
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt"]
