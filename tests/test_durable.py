"""A file is whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from plumbline import durable


def test_a_file_is_written_in_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write(path, b"first")
    durable.write(path, b"second", permissions=0o600)
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    durable.write(path, b"first")

    def write_half() -> None:
        with durable.replacing(path) as descriptor:
            os.write(descriptor, b"half of it")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_half()
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_call_that_fails_leaves_what_was_there(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    durable.write(path, b"first")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space") as error:
            durable.write(path, b"second")
    assert durable.advice(error.value) == "Free some space on the disk"
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


def filled(path: Path, fail: bool = False) -> None:
    with durable.new_folder(path) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("text")
        if fail:
            raise RuntimeError("stopped")


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "above" / "folder"
    with pytest.raises(RuntimeError, match="stopped"):
        filled(path, fail=True)
    assert os.listdir(tmp_path / "above") == []
    filled(path)
    assert (path / "inner" / "file").read_text() == "text"
    assert path.stat().st_mode & 0o777 == 0o777 & ~_umask()
    with pytest.raises(OSError, match="not empty"):
        filled(path)
    assert os.listdir(tmp_path / "above") == ["folder"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    filled(tmp_path)
    assert os.listdir(tmp_path) == ["inner"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
