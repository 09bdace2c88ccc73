"""A checkpoint's bytes on the disk: replaced as a whole or not at all.

Guarantee: whatever happens during ``replace_file`` (kill -9, power cut, full disk), the path holds
the old content or the new, never a mixture, and once it has returned, the new. State of single
records goes to a second file, ``<path>.PRIVATE``, that carries its warning in its first line; the
two are a pair by a token, and a crash between their writing leaves a complete pair.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

PRIVATE_MARK = (
    b"PRIVATE: state of single records of a Plumbline run. No guarantee covers this file; "
    b"keep it as you keep the data, and never publish it.\n"
)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read."""


def replace_file(path: Path, data: bytes, *, permissions: int = 0o666) -> None:
    """Puts ``data`` at ``path``, durably; if that fails, what was there stays.

    Raises:
        CheckpointError: Saying what to do.
    """
    try:
        put(path, data, permissions=permissions)
    except OSError as error:
        raise _cannot("write", path, error) from error


def put(path: Path, data: bytes, *, permissions: int = 0o666) -> None:
    """As ``replace_file``, with the system's own errors."""
    beside = Path(f"{path}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, permissions)
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, memoryview(data)[written:])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(beside, path)
        _sync_folder(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def read_file(path: Path) -> bytes:
    """What is at ``path``.

    Raises:
        CheckpointError: Saying what to do.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise _cannot("read", path, error) from error


def write_pair(path: Path, data: bytes, token: str, per_record: bytes | None) -> None:
    """A checkpoint and, if there is any, the state of single records that belongs to it.

    The second file is made under another name first and takes its own once the checkpoint refers
    to it, so that at every moment the checkpoint's partner is on the disk.
    """
    partner, coming = _partners(path)
    if per_record is None:
        replace_file(path, data)
        for stale in (partner, coming):
            with contextlib.suppress(OSError):
                if stale.read_bytes().startswith(PRIVATE_MARK):
                    stale.unlink()
        return
    header = PRIVATE_MARK + token.encode() + b"\n"
    replace_file(coming, header + per_record, permissions=0o600)
    replace_file(path, data)
    try:
        os.replace(coming, partner)
        _sync_folder(partner)
    except OSError as error:
        raise _cannot("write", partner, error) from error


def remove_pair(path: Path) -> None:
    """Takes away a checkpoint that is no longer needed, the state of single records first."""
    for stale in (*_partners(path), path):
        with contextlib.suppress(FileNotFoundError):
            stale.unlink()


def read_partner(path: Path, token: str) -> bytes:
    """The state of single records that belongs to a checkpoint.

    Raises:
        CheckpointError: If there is none with this token.
    """
    header = PRIVATE_MARK + token.encode() + b"\n"
    partner, coming = _partners(path)
    for candidate in (partner, coming):
        with contextlib.suppress(OSError):
            content = candidate.read_bytes()
            if content.startswith(header):
                return content[len(header) :]
    raise CheckpointError(
        f"The checkpoint {path} needs the state of single records that was saved with it, and "
        f"{partner} is missing or belongs to another checkpoint. Copy the two files together."
    )


def _partners(path: Path) -> tuple[Path, Path]:
    return Path(f"{path}.PRIVATE"), Path(f"{path}.PRIVATE.new")


def _sync_folder(path: Path) -> None:
    folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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


def _cannot(do: str, path: Path, error: OSError) -> CheckpointError:
    kept = " A checkpoint that was there before is as it was." if do == "write" else ""
    return CheckpointError(
        f"Cannot {do} the checkpoint {path}: {error.strerror}.{kept} {advice(error)}, then try "
        "again."
    )
