"""Files and folders that are whole or not there: written beside their place and moved into it.

Guarantee: whatever happens during a write (kill -9, a power cut, a full disk), the path holds the
old content or the new one, never a mixture; once the write has returned, it holds the new one, on
the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


def write(path: Path, data: bytes, *, permissions: int = 0o666) -> None:
    """Puts ``data`` at ``path``; if that fails, what was there stays.

    Raises:
        OSError: As the system reports it; ``advice`` says what to do.
    """
    with replacing(path, permissions=permissions) as descriptor:
        written = 0
        while written < len(data):
            written += os.write(descriptor, memoryview(data)[written:])


@contextlib.contextmanager
def replacing(path: Path, *, permissions: int = 0o666) -> Iterator[int]:
    """The descriptor of a new file, which takes its place at ``path`` when the block ends well."""
    beside = Path(f"{path}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, permissions)
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        move(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place at ``path`` when the block ends well.

    Raises:
        OSError: As the system reports it, also if there is something at ``path`` that is not an
            empty folder.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    beside.mkdir()
    try:
        yield beside
        for one in (*beside.rglob("*"), beside):
            _sync(one)
        move(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def move(source: Path, target: Path) -> None:
    """Gives a file or folder another name in the same folder, in place of what has it."""
    os.replace(source, target)
    _sync(target.absolute().parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def advice(error: OSError) -> str:
    """What to do about what the system refused."""
    return {
        errno.ENOSPC: "Free some space on the disk",
        errno.EDQUOT: "Free some space in your quota",
        errno.EFBIG: "Raise the limit on file sizes",
        errno.EACCES: "Choose a folder that you may write to",
        errno.EPERM: "Choose a folder that you may write to",
        errno.EROFS: "Choose a folder that you may write to",
        errno.ENOENT: "Check the path, and create its folder",
        errno.ENOTDIR: "Check the path: a part of it is a file, not a folder",
        errno.EISDIR: "Give the path of a file, not of a folder",
    }.get(error.errno or 0, "Check the path and the disk")
