"""A file that is appended to durably, by one process at a time: the part of the ledger on the disk.

Guarantee: once `append` and then `sync` have returned, the data survives a crash. A failed append
leaves the file as it was, or, if the system does not let us undo it, with a torn last line. After
any failure that leaves the file in doubt the object closes it and refuses to continue; so it does
when the path no longer leads to the file (moved away, deleted, or another put in its place), since
what is charged to a file that nobody will find again is not recorded.
"""

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from plumbline import durable, file_lock
from plumbline.mechanism.ledger_format import LedgerError

_PATIENCE = 60.0  # seconds: whoever writes a line has the file for as long as the disk takes


class LedgerLocked(LedgerError):
    """Another `Ledger` object, here or in another process, has the file open for writing.

    Attributes:
        pid: the process that has it, if the system tells.
    """

    def __init__(self, path: Path, busy: file_lock.FileBusy) -> None:
        who = busy.who
        if busy.pid == os.getpid():
            who += ", which is this one"
        super().__init__(
            f"ledger {path} is in use by {who}; only one may write to it. Close it there first, or "
            "read it with Ledger.read(path), which needs no lock"
        )
        self.pid = busy.pid


class LedgerFile:
    """A ledger's file, open for writing; created if it does not exist.

    Args:
        path: the file.
        alone: whether it is locked until it is closed; if not, only within `held`.

    Attributes:
        size: the length known to be good; `append` writes there.
    """

    def __init__(self, path: Path, *, alone: bool = True) -> None:
        self.path = path
        self.size = 0
        self._closed: str | None = None
        self._place = os.path.abspath(path)  # a later chdir leads nowhere else
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise cannot("open", path, error) from error
        self._close_fd = weakref.finalize(self, file_lock.close, self._fd, os.getpid())
        _open_files.add(self)
        if alone:
            self._lock()
            self.require_in_place()  # it may have been replaced while we waited for the lock

    @property
    def is_open(self) -> bool:
        """Whether the file can still be appended to."""
        return self._closed is None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Has a file that is not locked to itself; waits while another has it.

        Raises:
            LedgerLocked: if another process, or another object of this one, does not let go of it.
        """
        self.require_open()
        self._lock(_PATIENCE)
        try:
            self.require_in_place()
            yield
        finally:
            if self.is_open:  # closing has unlocked it
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def read(self, start: int = 0) -> bytes:
        """Returns the file's content from byte `start` on."""
        pieces: list[bytes] = []
        length = start
        try:
            while piece := os.pread(self._fd, 1 << 24, length):
                pieces.append(piece)
                length += len(piece)
        except OSError as error:
            raise cannot("read", self.path, error) from error
        return b"".join(pieces)

    def append(self, data: bytes, *, overwrite: int = 0) -> None:
        """Writes `data` at `size`, all or nothing; it is durable only after `sync`.

        Args:
            data: what to write.
            overwrite: how many bytes beyond `size` the file has, to be written over.
        """
        self.require_in_place()
        if os.fstat(self._fd).st_size != self.size + overwrite:
            self.let_go("its file was changed by others")
            self.require_open()
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self.size + written)
        except OSError as error:
            # Keep what a repair overwrites: it is still torn. Undo everything else.
            if not overwrite:
                self._take_back()
            raise cannot("write to", self.path, error) from error
        except BaseException:
            self.let_go("writing to it was interrupted; open it again")
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Waits until everything appended is on disk."""
        try:
            if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the drive's cache
                fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
            else:
                os.fsync(self._fd)
        except OSError as error:
            # The system may have dropped what it could not write: trying again proves nothing.
            self.let_go(f"it could not be synced to the disk ({error.strerror}); open it again")
            raise cannot("sync", self.path, error) from error
        except BaseException:
            self.let_go("syncing it was interrupted; open it again")
            raise

    def sync_folder(self) -> None:
        """Waits until the file's name is on disk too."""
        try:
            folder = os.open(self.path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise cannot("sync the folder of", self.path, error) from error

    def clear(self) -> None:
        """Empties the file."""
        try:
            os.ftruncate(self._fd, 0)
        except OSError as error:
            raise cannot("write to", self.path, error) from error
        self.size = 0

    def let_go(self, reason: str) -> None:
        """Closes the file and releases the lock; `reason` says why it cannot be used again."""
        self._closed = self._closed or reason
        self._close_fd()

    def require_open(self) -> None:
        """Raises LedgerError, with the reason, if the file was closed."""
        if self._closed is not None:
            raise LedgerError(
                f"ledger {self.path} cannot be charged: {self._closed}. Nothing may be released "
                "without a charge; open it with Ledger.open(path)"
            )

    def require_in_place(self) -> None:
        """Raises LedgerError if the file was closed, or if the path leads to another or to none."""
        self.require_open()
        try:
            found = os.stat(self._place)
        except FileNotFoundError:
            self.let_go("its file was moved away or deleted while it was open")
        except OSError as error:
            raise cannot("find", self.path, error) from error
        else:
            if not os.path.samestat(found, os.fstat(self._fd)):
                self.let_go("another file was put in its place while it was open")
        self.require_open()

    def _lock(self, patience: float = 0.0) -> None:
        """Locks the file, within so many seconds."""
        try:
            file_lock.lock(self._fd, patience)
        except file_lock.FileBusy as busy:
            self.let_go("it is locked")
            raise LedgerLocked(self.path, busy) from None
        except OSError as error:
            self.let_go("it could not be locked")
            raise cannot("lock", self.path, error) from error

    def _take_back(self) -> None:
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            self.let_go("a line could be neither written nor taken back; open it again")


def cannot(do: str, path: Path, error: OSError) -> LedgerError:
    """The error to raise when the system refuses to `do` something with a ledger."""
    return LedgerError(
        f"cannot {do} ledger {path}: {error.strerror}. Nothing may be released on its account. "
        f"{durable.advice(error)}, then try again"
    )


_open_files: "weakref.WeakSet[LedgerFile]" = weakref.WeakSet()


def _abandon_in_child() -> None:
    # The file and its lock stay with the parent: a forked child that kept them open would hold the
    # lock after the parent has ended, and could write at the same time.
    for file in list(_open_files):
        file.let_go(f"it belongs to process {os.getppid()}, and this process is a fork of it")


os.register_at_fork(after_in_child=_abandon_in_child)
