"""Locks of one process: shared by its objects, not had by a child, let go of with the last."""

import gc
import os
from pathlib import Path

import pytest

from plumbline.file_lock import FileBusy, process_lock
from tests.mechanism.forked import in_child


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path / "file"


def busy(path: Path) -> int | None:
    """The process that has the file, as another one sees it."""

    def tries() -> int | None:
        try:
            process_lock(path)
        except FileBusy as error:
            return error.pid
        return None

    return in_child(tries)


def test_objects_of_a_process_share_it_and_the_last_lets_go(path: Path) -> None:
    first, second = process_lock(path), process_lock(path)
    assert first is second
    del first
    gc.collect()
    assert busy(path) == os.getpid()
    del second
    gc.collect()
    assert busy(path) is None


def test_a_child_that_outlives_a_lock_does_not_keep_it(path: Path) -> None:
    held = process_lock(path)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until the parent has closed it
        os._exit(0)
    os.close(reading)
    del held
    gc.collect()
    assert busy(path) is None
    os.close(writing)
    os.waitpid(child, 0)


def test_another_name_of_the_file_is_the_same_file(path: Path) -> None:
    held = process_lock(path)
    for name, link in (("hard", os.link), ("soft", os.symlink)):
        link(path, path.with_name(name))
        assert busy(path.with_name(name)) == held.owner
