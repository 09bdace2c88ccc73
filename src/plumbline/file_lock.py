"""Locks on files: what one process has, no other has until that process lets go of it or ends.

The system's lock (flock) lasts until every copy of its descriptor is closed, and a child that is
just being forked has one. So whoever has locked a file unlocks it, and a child only closes its
copy.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path

_POLL = 0.002


class FileBusy(Exception):
    """Another process, or another opening of the file, has it.

    Attributes:
        pid: The process, if the system tells.
    """

    def __init__(self, pid: int | None) -> None:
        super().__init__("in use")
        self.pid = pid

    @property
    def who(self) -> str:
        """Who has it, in words."""
        return "an unknown process" if self.pid is None else f"process {self.pid}"


def lock(descriptor: int, patience: float = 0.0) -> None:
    """Locks an open file, within so many seconds.

    Raises:
        FileBusy: If it is still locked then.
        OSError: If the system cannot lock it.
    """
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise FileBusy(_holder(descriptor)) from None
            time.sleep(_POLL)


def close(descriptor: int, owner: int) -> None:
    """Unlocks and closes a file that ``owner`` has opened; a child of that process only closes."""
    if os.getpid() == owner:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


class ProcessLock:
    """A lock that all objects of a process share; it is let go of with the last of them.

    A forked child does not have it. Made by ``process_lock``.
    """

    def __init__(self, descriptor: int) -> None:
        self.owner = os.getpid()
        self.let_go = weakref.finalize(self, close, descriptor, self.owner)


def process_lock(path: Path) -> ProcessLock:
    """Locks a file that exists against other processes.

    Raises:
        FileBusy: If another process has it.
        OSError: If the system cannot open or lock it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    place = status.st_dev, status.st_ino
    found = _process_locks.get(place)
    if found is not None:
        os.close(descriptor)
        return found
    try:
        lock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    found = _process_locks[place] = ProcessLock(descriptor)
    return found


_process_locks: weakref.WeakValueDictionary[tuple[int, int], ProcessLock] = (
    weakref.WeakValueDictionary()
)


def _abandon_in_child() -> None:
    for one in list(_process_locks.values()):
        one.let_go()
    _process_locks.clear()


os.register_at_fork(after_in_child=_abandon_in_child)


def _holder(descriptor: int) -> int | None:
    """The process that holds the lock on a file, where the system tells (Linux)."""
    inode = str(os.fstat(descriptor).st_ino)
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            # 1: FLOCK  ADVISORY  WRITE 5962 fe:00:2150520 0 EOF
            _, kind, _, _, pid, place, *_ = line.split()
            if kind == "FLOCK" and place.rpartition(":")[2] == inode and int(pid) > 0:
                return int(pid)
    return None
