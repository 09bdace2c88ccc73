"""The journal of a run: what each step released, on the disk before the weights move.

What a step released is private already, so it can be written down. A run that was killed makes the
updates of its journal again, on its last checkpoint, and has lost nothing but the step in flight.

Guarantees. A step's *mark* is in the file before any answer to it is drawn, so that a step without
a mark was never begun; its *release* is there before the optimizer sees it. Both are unbuffered
writes: a process that is killed loses neither. Nothing is synced. After a power cut the entries
that are left whole and in order are used, and ``Found.evidence`` is not what it was before, by
which the ledger knows that steps may have been made that the journal does not show.

The file is written from its beginning again whenever a checkpoint has taken its place, so that its
pages stay in memory; a number drawn for each such *generation* tells its entries from older ones,
and an object whose generation is no longer there does not write: another goes on with the run. One
process at a time has it, and a forked child does not: the marks of two would be written over. Of
times only the last is kept, since how long steps took tells how many records were drawn for them.
Where a method keeps state of single records, the journal has it too, and is named PRIVATE.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.file_lock import FileBusy, ProcessLock, process_lock
from plumbline.training.checkpoint_file import PRIVATE_MARK, CheckpointError, in_words
from plumbline.training.state_packing import Buffer, packed, unpacked

_MAGIC = b"plumbline journal 1\n"
_HEAD = struct.Struct("<QQI")  # generation, steps begun before it, checksum
_CLOCK = struct.Struct("<QI")  # time of the last write, checksum
_ENTRY = struct.Struct("<cQQQI")  # kind, generation, step, length of what follows, checksum
_MARK, _RELEASE = b"m", b"r"
_AT_ONCE = 1_000_000_000  # ns by which a file's last change may follow the time of its last write
_PIECES = 500  # of a write, at most


@dataclass(frozen=True)
class Found:
    """What a journal shows.

    Attributes:
        begun: Every step from this one on was never begun, as far as the journal shows.
        releases: The steps that were made, with what was written of each, in order.
        evidence: The file that this was read from; None if it may have been copied or put back.
    """

    begun: int = 0
    releases: Sequence[tuple[int, Any]] = ()
    evidence: str | None = None


def journal_path(checkpoint: Path, *, private: bool) -> Path:
    """Where the journal of a run is; ``private`` says that it has state of single records."""
    return Path(f"{checkpoint}.journal{'.PRIVATE' if private else ''}")


def remove_journals(checkpoint: Path) -> None:
    """Deletes the journal of a run that has ended."""
    for private in (True, False):
        with suppress(FileNotFoundError):
            journal_path(checkpoint, private=private).unlink()


class Journal:
    """A run's journal, open for writing; what it held stays until ``clear``, which comes first.

    Args:
        checkpoint: The run's checkpoint, beside which the journal is.
        private: Whether it has state of single records.

    Raises:
        CheckpointError: If it cannot be opened, another file is in its place, or another process
            makes the run.
    """

    def __init__(self, checkpoint: Path, *, private: bool) -> None:
        self.path = journal_path(checkpoint, private=private)
        self._magic = _magic(private)
        with in_words("write", self.path):
            permissions = 0o600 if private else 0o666
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, permissions)
            there = os.pread(self._file, len(self._magic), 0)
        weakref.finalize(self, os.close, self._file)
        _refuse_other_file(self.path, there, self._magic)
        self._lock = _locked(self.path)
        self._generation = 0
        self._end = 0
        self.evidence = _evidence(os.fstat(self._file))
        """What a charge names the journal by: this very file, in this session of the machine."""

    @property
    def size(self) -> int:
        """How many bytes of it count."""
        return self._end

    def begin(self, step: int) -> None:
        """Marks a step: from now on its answers may be drawn."""
        self._add(_MARK, step, [])

    def release(self, step: int, content: Mapping[str, Any]) -> None:
        """Writes down what a step released and did; then the weights may move."""
        try:
            pieces = packed(content)
        except TypeError as error:
            raise CheckpointError(
                f"The method's state or a setting of the optimizer cannot be kept in the journal "
                f"{self.path}: {error}. Make, for example, float(x) of a NumPy number."
            ) from None
        self._add(_RELEASE, step, pieces)

    def clear(self, begun: int) -> None:
        """Begins again, once a checkpoint has what was written so far.

        Args:
            begun: How many steps were begun; an older checkpoint, put back, would not know.
        """
        self._generation = secrets.randbits(64)
        self._end = 0
        self._write([self._magic, _sealed(_HEAD, self._generation, begun), _clock()])

    def require_own(self) -> None:
        """Refuses to go on if another object has begun the journal again since this one did.

        Both would write over each other's marks, and steps that were made would not be seen. So
        would a process that was forked and the one that it is a fork of.

        Raises:
            CheckpointError: Saying so.
        """
        if self._lock.owner != os.getpid():
            raise CheckpointError(
                f"The run of {self.path} belongs to process {self._lock.owner}, and this process "
                "is a fork of it: make its steps there alone."
            )
        with in_words("read", self.path):
            there = os.pread(self._file, 8, len(self._magic))
        if there != self._generation.to_bytes(8, "little"):
            raise CheckpointError(
                f"Another object or process goes on with the run of {self.path}: make its steps "
                "there alone, or call make_private again to take it over."
            )

    def _add(self, kind: bytes, step: int, pieces: list[Buffer]) -> None:
        length = sum(len(piece) for piece in pieces)
        fields = kind, self._generation, step, length
        checksum = zlib.crc32(_ENTRY.pack(*fields, 0))
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
        self.require_own()
        with in_words("write", self.path):  # before, for a process that is killed as it writes
            self._tick()
        self._write([_ENTRY.pack(*fields, checksum), *pieces])

    def _write(self, pieces: list[Buffer]) -> None:
        """Writes behind what counts; if that fails, nothing more counts than before."""
        at = self._end
        with in_words("write", self.path):
            while pieces:
                written = os.pwritev(self._file, pieces[:_PIECES], at)
                at += written
                pieces = _rest(pieces, written)
            self._tick()
        self._end = at

    def _tick(self) -> None:
        os.pwrite(self._file, _clock(), len(self._magic) + _HEAD.size)


def read(checkpoint: Path, *, private: bool) -> Found:
    """What the journal of a run shows; nothing, if there is none.

    Raises:
        CheckpointError: If it cannot be read, or another file is in its place.
    """
    return _read(journal_path(checkpoint, private=private), _magic(private))


def _magic(private: bool) -> bytes:
    return (PRIVATE_MARK if private else b"") + _MAGIC


def _read(path: Path, magic: bytes) -> Found:
    with in_words("read", path):
        if not path.exists():
            return Found()
        with path.open("rb") as file:
            status, data = os.fstat(file.fileno()), memoryview(file.read())
    _refuse_other_file(path, data, magic)
    clock = len(magic) + _HEAD.size
    at = clock + _CLOCK.size
    if len(data) < at:  # killed as the file was made
        return Found()
    generation, begun, _ = _HEAD.unpack(data[len(magic) : clock])
    written, _ = _CLOCK.unpack(data[clock:at])
    if data[len(magic) : at] != _sealed(_HEAD, generation, begun) + _sealed(_CLOCK, written):
        return Found()
    releases = []
    for kind, step, content in _entries(data[at:], generation):
        begun = max(begun, step + 1)
        if kind == _RELEASE:
            releases.append((step, unpacked(content)))
    # A copy that was put into the file's place has changed it later than its last write says.
    evidence = _evidence(status) if abs(status.st_ctime_ns - written) < _AT_ONCE else None
    return Found(begun, releases, evidence)


def _refuse_other_file(path: Path, data: Buffer, magic: bytes) -> None:
    if data[: len(magic)] != magic[: len(data)]:
        raise CheckpointError(
            f"{path} is not the journal of a run, and would be overwritten. Move it away, or give "
            "another checkpoint file."
        )


def _locked(path: Path) -> ProcessLock:
    """Has the journal until this process ends, or no object of it needs it any more."""
    try:
        with in_words("lock", path):
            return process_lock(path)
    except FileBusy as busy:
        raise CheckpointError(
            f"The run of {path} is being made by {busy.who}. Let it end, or stop it, and then go "
            "on; nothing was charged or changed."
        ) from None


def _sealed(layout: struct.Struct, *fields: int) -> bytes:
    """The fields with their checksum."""
    return layout.pack(*fields, zlib.crc32(layout.pack(*fields, 0)))


def _clock() -> bytes:
    return _sealed(_CLOCK, time.time_ns())


def _entries(data: memoryview, generation: int) -> Iterator[tuple[bytes, int, memoryview]]:
    """The whole entries of a generation, in order: kind, step, content."""
    at = 0
    while len(data) >= at + _ENTRY.size:
        *fields, checksum = _ENTRY.unpack(data[at : at + _ENTRY.size])
        kind, own, step, length = fields
        at += _ENTRY.size
        if own != generation or len(data) < at + length:
            return
        content = data[at : at + length]
        at += length
        if checksum != zlib.crc32(content, zlib.crc32(_ENTRY.pack(*fields, 0))):
            return
        yield kind, step, content


def _rest(pieces: list[Buffer], written: int) -> list[Buffer]:
    """What is left to write of some pieces."""
    while pieces and written >= len(pieces[0]):
        written -= len(pieces[0])
        pieces = pieces[1:]
    return [memoryview(pieces[0])[written:], *pieces[1:]] if written else pieces


def _evidence(status: os.stat_result) -> str | None:
    boot = _boot()
    if boot is None:
        return None
    # A digest: the ledger, which names it, may be published.
    known = f"{boot} {status.st_dev} {status.st_ino}"
    return hashlib.sha256(known.encode()).hexdigest()[:32]


def _boot() -> str | None:
    """What this session of the machine is known by, where the system tells (Linux)."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None
