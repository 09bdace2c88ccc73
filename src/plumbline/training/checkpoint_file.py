"""A checkpoint on the disk, and beside it the state of single records, if there is any.

Guarantee: each file is replaced as a whole or not at all (``durable``). State of single records
goes to a second file, ``<path>.PRIVATE``, which begins with a warning; a token makes the two files
a pair, and a crash while they are written leaves a complete pair.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from plumbline import durable

PRIVATE_MARK = (
    b"PRIVATE: state of single records of a Plumbline run. No guarantee covers this file; "
    b"keep it as you keep the data, and never publish it.\n"
)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read."""


def read_file(path: Path) -> bytes | None:
    """The content of the file at ``path``; None if there is none.

    Raises:
        CheckpointError: If it cannot be read; says what to do.
    """
    with in_words("read", path):
        return path.read_bytes() if path.exists() else None


def write_pair(path: Path, data: bytes, token: str, per_record: bytes | None) -> None:
    """Writes a checkpoint and the state of single records that belongs to it, if there is any.

    The second file is written under another name first and gets its own once the checkpoint refers
    to it, so that at every moment the checkpoint's partner is on the disk.

    Raises:
        CheckpointError: If a file cannot be written; says what to do.
    """
    partner, coming = _partners(path)
    if per_record is None:
        with in_words("write", path):
            durable.write(path, data)
        for stale in (partner, coming):
            with contextlib.suppress(OSError):
                if stale.read_bytes().startswith(PRIVATE_MARK):
                    stale.unlink()
        return
    header = PRIVATE_MARK + token.encode() + b"\n"
    with in_words("write", coming):
        durable.write(coming, header + per_record, permissions=0o600)
    with in_words("write", path):
        durable.write(path, data)
    with in_words("write", partner):
        durable.move(coming, partner)


def remove_pair(path: Path) -> None:
    """Deletes a checkpoint that is no longer needed, the state of single records first."""
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


@contextlib.contextmanager
def in_words(do: str, path: Path) -> Iterator[None]:
    """Says what the system refused, and what to do."""
    try:
        yield
    except OSError as error:
        kept = " A checkpoint that was there before is unchanged." if do == "write" else ""
        raise CheckpointError(
            f"Cannot {do} the checkpoint {path}: {error.strerror}.{kept} {durable.advice(error)}, "
            "then try again."
        ) from error
