"""A disk of a few kilobytes, to be filled up or made read-only: a tmpfs of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = 4096  # a tmpfs gives room by the page


class SmallDisk:
    """A mounted tmpfs.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, pages: int) -> None:
        self.path = path
        path.mkdir()
        _mount("-t", "tmpfs", "-o", f"size={pages * PAGE}", "tmpfs", str(path))

    def resize(self, pages: int) -> None:
        """Gives it another size."""
        _mount("-o", f"remount,rw,size={pages * PAGE}", str(self.path))

    def make_read_only(self) -> None:
        """Nothing can be written from now on."""
        _mount("-o", "remount,ro", str(self.path))

    def fill(self) -> None:
        """Leaves no room."""
        with (self.path / "ballast").open("wb", buffering=0) as ballast:
            while True:
                try:
                    ballast.write(bytes(PAGE))
                except OSError:
                    break
            os.fsync(ballast)

    def empty(self) -> None:
        """Takes away what ``fill`` put there."""
        (self.path / "ballast").unlink()

    def unmount(self) -> None:
        """Lets go of it, whatever is still open."""
        subprocess.run(["umount", "-l", str(self.path)], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 64 pages; a test that asks for it is skipped where mounting is not allowed."""
    try:
        disk = SmallDisk(tmp_path / "disk", 64)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"a small tmpfs cannot be mounted here: {error}")
    yield disk
    disk.unmount()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
