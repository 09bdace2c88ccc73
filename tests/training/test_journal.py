"""What a journal shows of a run, and whether to rely on it."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline.training import journal
from plumbline.training.checkpoint_file import CheckpointError
from plumbline.training.journal import Journal, journal_path, read


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "run.pt"


def written(checkpoint: Path, steps: int = 3, *, private: bool = False) -> Journal:
    """A journal of some steps, of which the last is begun only."""
    made = Journal(checkpoint, private=private)
    made.clear(0)
    for step in range(steps):
        made.begin(step)
        if step < steps - 1:
            made.release(step, {"made": step, "update": {"w": torch.full((5,), float(step))}})
    return made


def test_what_was_written_is_found(checkpoint: Path) -> None:
    made = written(checkpoint)
    found = read(checkpoint, private=False)
    assert found.begun == 3
    assert [step for step, _ in found.releases] == [0, 1]
    assert torch.equal(found.releases[1][1]["update"]["w"], torch.ones(5))
    assert found.evidence == made.evidence is not None


def test_no_journal_shows_nothing(checkpoint: Path) -> None:
    assert read(checkpoint, private=False) == journal.Found()


def test_entries_of_an_earlier_generation_do_not_count(checkpoint: Path) -> None:
    made = written(checkpoint, 9)
    made.clear(9)
    assert read(checkpoint, private=False).begun == 9
    made.begin(9)
    found = read(checkpoint, private=False)
    assert (found.begun, found.releases) == (10, [])
    assert found.evidence == made.evidence


def test_cut_anywhere_it_shows_a_beginning_of_what_was_written(checkpoint: Path) -> None:
    """A power cut keeps what it will: never is a step shown that was not written."""
    written(checkpoint)
    path = journal_path(checkpoint, private=False)
    whole, last = path.read_bytes(), 0
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = read(checkpoint, private=False)
        assert found.begun >= last
        assert len(found.releases) in (found.begun, found.begun - 1)
        last = found.begun
    assert last == 2


def test_a_damaged_entry_ends_it(checkpoint: Path) -> None:
    written(checkpoint)
    path = journal_path(checkpoint, private=False)
    whole = path.read_bytes()
    for place in range(len(b"plumbline journal 1\n"), len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = read(checkpoint, private=False)
        for step, content in found.releases:
            assert torch.equal(content["update"]["w"], torch.full((5,), float(step)))
        assert found.begun < 3


def copied(path: Path) -> None:
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def put_back(path: Path) -> None:
    """Another content in the very file, with the times that it had."""
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [copied, put_back])
def test_a_journal_that_was_copied_or_put_back_is_no_evidence(
    checkpoint: Path, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(checkpoint)
    monkeypatch.setattr(journal, "_AT_ONCE", 0 if change is put_back else journal._AT_ONCE)
    change(journal_path(checkpoint, private=False))
    found = read(checkpoint, private=False)
    assert found.begun == 3
    assert found.evidence != made.evidence


def test_after_the_machine_was_started_anew_it_is_no_evidence(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(checkpoint)
    monkeypatch.setattr(journal, "_boot", lambda: "another")
    assert read(checkpoint, private=False).evidence != made.evidence
    monkeypatch.setattr(journal, "_boot", lambda: None)
    assert read(checkpoint, private=False).evidence is None


def test_with_state_of_records_it_is_private(checkpoint: Path) -> None:
    written(checkpoint, private=True)
    path = journal_path(checkpoint, private=True)
    assert path.name == "run.pt.journal.PRIVATE"
    assert path.read_bytes().startswith(b"PRIVATE: state of single records")
    assert path.stat().st_mode & 0o077 == 0
    assert read(checkpoint, private=True).begun == 3
    journal.remove_journals(checkpoint)
    assert not path.exists()


def test_another_file_is_not_overwritten(checkpoint: Path) -> None:
    path = journal_path(checkpoint, private=False)
    path.write_text("my notes")
    with pytest.raises(CheckpointError, match="is not the journal of a run"):
        Journal(checkpoint, private=False)
    assert path.read_text() == "my notes"


def test_a_full_disk_leaves_what_was_there(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(checkpoint)
    write = os.pwritev

    def part(file: int, pieces: Any, at: int) -> int:
        if len(pieces) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, pieces[:1], at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", part)
        with pytest.raises(CheckpointError, match="Free some space"):
            made.release(2, {"update": torch.ones(3)})
    assert len(read(checkpoint, private=False).releases) == 2
    made.release(2, {"made": 2})
    assert [step for step, _ in read(checkpoint, private=False).releases] == [0, 1, 2]


def test_a_write_may_come_in_parts(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev

    def three(file: int, pieces: Any, at: int) -> int:
        return write(file, [bytes(pieces[0])[:3]], at)

    monkeypatch.setattr(os, "pwritev", three)
    written(checkpoint)
    found = read(checkpoint, private=False)
    assert found.begun == 3
    assert torch.equal(found.releases[1][1]["update"]["w"], torch.ones(5))


def test_what_cannot_be_kept_is_said(checkpoint: Path) -> None:
    made = written(checkpoint)
    with pytest.raises(CheckpointError, match=r"a set is among the state.*float\(x\)"):
        made.release(3, {"method": {1, 2}})


def test_who_was_taken_over_writes_no_more(checkpoint: Path) -> None:
    """Else the marks of the one would be written over by the other's."""
    made = written(checkpoint)
    other = Journal(checkpoint, private=False)
    other.clear(3)
    other.begin(3)
    with pytest.raises(
        CheckpointError, match=r"Another object or process.*call make_private again"
    ):
        made.begin(3)
    assert read(checkpoint, private=False).begun == 4


def test_it_does_not_tell_how_long_a_step_took(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would tell how many records were drawn for it."""

    def content(*durations: int) -> bytes:
        now = [10**18]
        monkeypatch.setattr(journal.time, "time_ns", lambda: now[0])
        monkeypatch.setattr(journal.secrets, "randbits", lambda _: 5)
        made = written(checkpoint, 1)
        for step, duration in enumerate(durations, 1):
            now[0] += duration
            made.begin(step)
        return journal_path(checkpoint, private=False).read_bytes()

    assert content(3, 4, 5) == content(5, 1, 6)
