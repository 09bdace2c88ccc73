"""Runs on a Ray cluster: each is a task, made on whichever machine has a free core.

The machines share the experiment's folder, at one path; and where runs share a ledger, the folders
of that too. Nothing is copied back: what a run has saved is there when Ray starts it again on
another machine, since its process or its machine was lost.

Guarantee: before a run is begun, its machine has shown that it sees those very folders and that
file locks reach it, so that each step is charged once, in the ledgers that this process knows. A
run that ended there is never made a second time here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.files import make_folder
from plumbline.experiments.pool import (
    POLL_SECONDS,
    Waiting,
    Workers,
    packed,
    part_of,
    unpacked,
)
from plumbline.experiments.run_result import read_result, same_bits
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.running import run
from plumbline.experiments.table_ledgers import table_source
from plumbline.experiments.user_folders import config_folder, row_key, state_folder

_RETRIES = 3  # of a run whose process was lost; an error of its own is not tried again
_LAG_SECONDS = 60  # after which a network's file system shows what another machine has written
_connected: str | None = None  # the address that this process has connected to


class ClusterError(RuntimeError):
    """The cluster does not answer, or cannot make the runs. Says what to do."""


class RayWorkers(Workers):
    """A cluster that makes runs; how many at a time, Ray decides. Steps are not reported.

    Args:
        address: As of ``connect``.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._ray = connect(address)

    def _make(self, runs: Waiting) -> None:
        if not runs.specs:
            return
        task = self._ray.remote(max_retries=_RETRIES)(_made_there)
        place = runs.root.resolve()
        named = None if runs.ledger is None else Path(runs.ledger).resolve()
        with _beacons(_shared_folders(runs.specs, place, named)) as beacons:
            here = _Here.now(beacons)
            waiting = {task.remote(packed(spec), place, named, here): spec for spec in runs.specs}
            try:
                while waiting:
                    done, _ = self._ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
                    for one in done:
                        self._ended(one, place / waiting.pop(one).folder)
                        runs.progress.done += 1
                    runs.tell(runs.progress)
            finally:
                for one in waiting:
                    with contextlib.suppress(self._ray.exceptions.RayError):
                        self._ray.cancel(one, force=True)

    def _ended(self, task: Any, folder: Path) -> None:
        try:
            self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error  # the run's own, as if it had been made here
        except self._ray.exceptions.RayError as error:
            raise ClusterError(
                f"The run in {folder} was lost with its process or machine, {_RETRIES + 1} times "
                f"({type(error).__name__}). What was saved is kept: give the same command again, "
                "and it goes on from there."
            ) from error
        for second in range(_LAG_SECONDS + 1):
            os.listdir(folder.parent)  # a network's file system then asks for what is new
            if read_result(folder) is not None:
                return
            if second < _LAG_SECONDS:
                time.sleep(1)
        raise ClusterError(
            f"The run in {folder} ended on its machine, and its result does not appear here: the "
            "file system lags behind. Give the same command again once it is there."
        )


def connect(address: str) -> Any:
    """Connects this process to a cluster, once; returns the module ``ray``.

    Args:
        address: "HOST:PORT", or "ray://HOST:PORT" of a Ray client; "auto" for the cluster that this
            process or this machine belongs to; "local" for a new one on this machine, which ends
            with the process.

    Raises:
        ImportError: If Ray is not installed.
        ClusterError: If nobody answers there.
    """
    global _connected
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
    try:
        import ray
    except ImportError as error:
        raise ImportError("--ray needs a package: pip install 'plumbline[ray]'.") from error
    if ray.is_initialized():
        if address in ("auto", _connected):
            return ray
        raise ClusterError(
            f"--ray is {address!r}, and this process is connected to a cluster already: give "
            "'auto' for that one, or call ray.shutdown() first."
        )
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == "local":
        quiet["include_dashboard"] = False
    try:
        if address not in ("auto", "local"):
            _ask(address)
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ClusterError(
            f"No Ray cluster answers at {address!r}{f' ({why})' if why else ''}. Nothing was "
            "charged. `ray start --head` starts one; --ray local makes one for this command. If "
            "one runs there, it may ask for a token: set Ray's RAY_AUTH_MODE as the cluster has it."
        ) from error
    _connected = address
    return ray


def _ask(address: str) -> None:
    """Opens a connection and ends it: Ray itself would try for more than a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--ray is {address!r}; give HOST:PORT, ray://HOST:PORT, auto or local.")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@dataclass(frozen=True)
class _Here:
    """What the machine of a run must find as it is here.

    Attributes:
        folder: The working folder, from which the paths of tables count.
        path: Where modules are found.
        environment: Plumbline's variables.
        made_with: The versions and the source that runs are made with.
        beacons: Files that this process has locked, one in each folder that is shared.
    """

    folder: str
    path: tuple[str, ...]
    environment: dict[str, str]
    made_with: dict[str, str]
    beacons: tuple[str, ...]

    @classmethod
    def now(cls, beacons: Sequence[str]) -> _Here:
        ours = {name: value for name, value in os.environ.items() if name.startswith("PLUMBLINE_")}
        ours["PLUMBLINE_STATE"] = str(state_folder().resolve())
        ours["PLUMBLINE_CONFIG"] = str(config_folder().resolve())
        path = tuple(os.path.abspath(one) for one in sys.path)
        return cls(os.getcwd(), path, ours, same_bits(), tuple(beacons))

    def enter(self) -> None:
        """On the machine of a run: makes this process like that one, or refuses.

        Raises:
            ClusterError: If a folder is another one here, or Plumbline is.
        """
        there = socket.gethostname()
        if (found := same_bits()) != self.made_with:
            raise ClusterError(
                f"{there} has other versions ({found}) than the command ({self.made_with}): "
                "results would differ. Install the same there, and leave Plumbline's source alone "
                "until the command has ended; nothing of this run was charged."
            )
        for beacon in self.beacons:
            if problem := _unshared(beacon):
                raise ClusterError(
                    f"{there} cannot make runs in {os.path.dirname(beacon)}: {problem}. Every "
                    "machine needs this folder, at this path, on a file system with locks (NFS "
                    "4, say). Nothing of this run was charged. Without one, use --shard."
                )
        with contextlib.suppress(FileNotFoundError):  # then relative paths are not found either
            os.chdir(self.folder)
        sys.path += [one for one in self.path if one not in sys.path]
        os.environ.update(self.environment)


def _unshared(beacon: str) -> str | None:
    """What is wrong with a folder: its beacon must be there, and locked by the other process."""
    try:
        with open(beacon, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except FileNotFoundError:
        return "it is not the folder of the machine that gave the command"
    except OSError as error:
        return f"{error.strerror}"
    return "file locks do not reach it"


@contextlib.contextmanager
def _beacons(folders: Sequence[Path]) -> Iterator[list[str]]:
    """A locked file in each folder, for the length of the block."""
    with contextlib.ExitStack() as lit:
        names = []
        for folder in folders:
            make_folder(folder)
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=".ray-")
            lit.callback(Path(name).unlink, missing_ok=True)
            lit.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            names.append(name)
        yield names


def _shared_folders(specs: Sequence[RunSpec], root: Path, named: Path | None) -> list[Path]:
    """What all machines must have in common: where runs are kept, and where they are charged."""
    if named is not None:
        return [root, named.parent]
    if any(table_source(spec.data) is not None for spec in specs):
        row_key()  # made here, if there is none yet
        return [root, state_folder().resolve(), config_folder().resolve()]
    return [root]


def _made_there(run_packed: bytes, root: Path, ledger: Path | None, here: _Here) -> None:
    here.enter()
    spec = unpacked(run_packed)
    run(spec, root, ledger=ledger, part=part_of(spec))
