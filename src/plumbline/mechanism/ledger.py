"""The ledger: a file that records what has been spent on a data set, whatever happens.

`charge` writes and syncs a line *before* the step's result can be seen; `ledger_format` defines the
lines, `ledger_file` writes to disk. Many runs can share one ledger, one after the other or side by
side in one process (several processes write to a `SharedLedger`), and their costs compose.

Guarantee: the ledger never says less than what was released. After a crash at any moment (kill -9,
power cut, full disk) it contains every step whose `charge` returned, and at most one charge more. A
torn last line is charged at its highest possible cost, and is repaired on opening by overwriting it
in place: the file never lacks it. Any other damage is refused, with the line that is wrong. The
file itself cannot show that a whole tail was lost: `verify_position` compares it with the count and
hash in a checkpoint. Nor can a checkpoint show that a later one was made: `note_checkpoint` writes
each down, and `later_checkpoint` tells.
"""

import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

from plumbline.mechanism import ledger_format as lines
from plumbline.mechanism.ledger_file import LedgerFile, LedgerLocked, cannot
from plumbline.mechanism.ledger_format import (
    Book,
    Entries,
    LedgerDamaged,
    LedgerError,
    Limit,
    NoiseReuse,
    Position,
    Saved,
)
from plumbline.mechanism.ledger_limit import BudgetExceeded, BudgetGuard, ledger_epsilon

__all__ = [
    "BudgetExceeded",
    "BudgetGuard",
    "Ledger",
    "LedgerDamaged",
    "LedgerError",
    "LedgerLocked",
    "NoiseReuse",
    "Position",
]

Guard = Callable[[Entries], None]


class Ledger:
    """What has been charged to a data set. Created by `Ledger.open` or `Ledger.read`."""

    _alone: ClassVar[bool] = True  # whether the file is locked until it is closed

    def __init__(self, path: Path, file: LedgerFile | None, *, reserve: int = 1) -> None:
        self.path = path
        self._file = file
        self.reserve = reserve
        self._guards: list[Guard] = []
        self._session = secrets.token_hex(8)
        self._reserved: dict[str, int] = {}  # run -> steps charged ahead and not taken yet
        self._own: dict[str, int] = {}  # run -> the declaration of this object's last charge
        self._mutex = threading.RLock()
        self._book = Book()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        limit: Limit | None = None,
        guard: Guard | None = None,
        reserve: int = 1,
    ) -> Self:
        """Opens a ledger for charging and locks it; creates it if it does not exist.

        Args:
            path: the file.
            limit: a data-set budget (epsilon, delta). It is written into the file: later openings
                obey it without repeating it, and cannot change it. It is checked with PLD and
                add/remove neighbours; for another relation pass a `BudgetGuard` as `guard`.
            guard: called before every line that charges, with all entries including the proposed
                one; it refuses by raising, usually `BudgetExceeded`.
            reserve: how many steps to charge ahead with one durable line, so that not every step
                waits for the disk. A crash then over-states by up to `reserve - 1` steps;
                `close` refunds what was not used. Seeded steps are always charged singly.

        Raises:
            LedgerLocked: if it is already open for writing.
            LedgerDamaged: if a line other than a torn last one is wrong.
            LedgerError: if the file cannot be read and written, or has another limit.
        """
        if reserve < 1:
            raise ValueError(f"reserve is {reserve}; it is a number of steps, at least 1")
        if limit is not None:
            limit = float(limit[0]), float(limit[1])
            BudgetGuard(limit)  # checks it
        file = LedgerFile(Path(path), alone=cls._alone)
        ledger = cls(file.path, file, reserve=reserve)
        try:
            with ledger._turn(file):
                ledger._load(file, limit)
        except BaseException:
            file.let_go("it could not be opened")
            raise
        if ledger.limit is not None:
            ledger._guards.append(BudgetGuard(ledger.limit))
        if guard is not None:
            ledger._guards.append(guard)
        return ledger

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a ledger without locking or changing it; a torn last line counts as charged.

        While another process is writing, its unfinished line counts as charged too.
        """
        ledger = cls(Path(path), None)
        try:
            data = ledger.path.read_bytes()
        except OSError as error:
            raise cannot("read", ledger.path, error) from error
        ledger._book, torn = lines.parse(data, str(path))
        if torn is not None:
            ledger._book.apply({"kind": "torn", "charged": ledger._book.worst()})
        return ledger

    @property
    def position(self) -> Position:
        """How far the ledger is written: the count and hash that a checkpoint stores."""
        return self._book.position

    @property
    def limit(self) -> Limit | None:
        """The data-set budget (epsilon, delta), if the ledger has one."""
        return self._book.limit

    def entries(self, run: str | None = None) -> Entries:
        """Returns (release, number of steps) pairs, of one run or of all."""
        with self._mutex:
            return self._book.entries(run)

    def runs(self) -> set[str]:
        """Returns the ids of the runs charged here."""
        with self._mutex:
            return {declaration.run for declaration in self._book.declarations}

    def charged_here(self) -> set[str]:
        """Returns the ids of what was charged through this object."""
        return set(self._own)

    def charged(self, run: str) -> int:
        """Returns how many steps of `run` are charged, without those reserved and not yet taken."""
        with self._mutex:
            declarations = self._book.declarations
            total = sum(one.charged for one in declarations if one.run == run)
            return total - self._reserved.get(run, 0)

    def counted(self, run: str) -> int:
        """Returns for how many steps in a row those of `run` count, of which its budget pays.

        More than are charged, where steps of a cyclic sampling were charged out of order.
        """
        with self._mutex:
            apart = sum(one.apart for one in self._book.declarations if one.run == run)
            return self.charged(run) + apart

    def next_step(self, run: str) -> int:
        """Returns the step that goes on where the charges of `run` ended."""
        return self._book.next.get(run, 0) - self._reserved.get(run, 0)

    def noise_positions(self, run: str) -> set[int]:
        """Returns the noise positions that a seeded `run` has used."""
        with self._mutex:
            return {position for name, position in self._book.noise if name == run}

    def require_room(self, release: Mapping[str, Any], count: int) -> None:
        """Refuses a run that could not be charged to its end; charges nothing.

        Raises:
            BudgetExceeded: if `count` more steps would exceed the data set's budget.
        """
        key = lines.canonical(release)
        with self._mutex:
            for guard in self._guards:
                guard(self._book.entries(plus=(key, count)))

    def epsilon(self, delta: float, **accounting: Any) -> float:
        """Returns the epsilon at `delta` of everything ever charged, from the file alone.

        Args:
            delta: the delta of the guarantee.
            **accounting: `accountant` ("pld" or "rdp") and `relation`, as for
                `plumbline.mechanism.accountant.epsilon`.
        """
        try:
            return ledger_epsilon(self.entries(), delta=delta, **accounting)
        except LedgerError as error:
            raise LedgerError(f"ledger {self.path}: {error}") from error

    def verify_position(self, position: Position) -> None:
        """Refuses a ledger that has lost charges made before a checkpoint.

        Args:
            position: `Ledger.position` at the time of the checkpoint.

        Raises:
            LedgerDamaged: if the ledger is shorter than that, or a different one.
        """
        count, digest = position.count, position.hash
        have = len(self._book.hashes)
        if count > have:
            raise LedgerDamaged(
                str(self.path), have + 1, f"it is missing: the checkpoint has seen {count} lines"
            )
        if digest != (self._book.hashes[count - 1] if count else lines.GENESIS):
            raise LedgerDamaged(
                str(self.path), count, "it is not the line that the checkpoint has seen"
            )

    def note_checkpoint(self, run: str, *, step: int, token: str) -> None:
        """Writes down that `run` has saved a checkpoint; a closed ledger leaves it out.

        Args:
            run: the run's id.
            step: where the run stood.
            token: names the checkpoint.

        Raises:
            LedgerError: if the line cannot be made durable.
        """
        if self._file is not None and self._file.is_open:
            note = {"kind": "saved", "run": run, "step": step, "token": token}
            with self._mutex, self._turn(self._file):
                self._append(self._file, [note])

    def last_checkpoint(self, run: str) -> Saved | None:
        """The last checkpoint of `run` that was noted."""
        return self._book.saved.get(run)

    def later_checkpoint(self, run: str, *, token: str, position: Position) -> int | None:
        """The step of the last checkpoint of `run`, if it was made after the one with `token`.

        Args:
            run: the run's id.
            token: names the checkpoint that is asked about.
            position: the ledger's position when that one was made.
        """
        saved = self.last_checkpoint(run)
        if saved is None or saved.token == token or saved.line < position.count:
            return None
        return saved.step

    def charge(
        self,
        release: Mapping[str, Any],
        *,
        run: str,
        step: int,
        count: int = 1,
        noise_position: tuple[int, str] | None = None,
        most: int | None = None,
        journal: str | None = None,
    ) -> Position:
        """Charges a step. When this returns, the charge is on disk; release only then.

        Args:
            release: what the step releases, as plain JSON (`StepRelease.to_dict()`).
            run: the run's id. A seeded run needs an id that depends on its seed and settings only.
            step: the step's number.
            count: how many equal steps from `step` on to charge at once.
            noise_position: for a seeded run, which noise is used and a digest of what it is added
                to. The same again (same run, position, digest and release) is a replay, which
                reveals nothing new and is not charged again.
            most: how many steps the run may charge in total; replays are free.
            journal: what the journal is known by in which the run marks a step before it asks. With
                it, `give_back` can refund steps charged ahead after a crash.

        Returns:
            The ledger's position after this charge.

        Raises:
            NoiseReuse: if the noise at that position was used with another digest or release.
            BudgetExceeded: if a guard refuses, or `most` is exceeded; nothing is charged then.
            LedgerError: if the line cannot be made durable; the step must not be released.
        """
        try:
            key = lines.canonical(release)
        except (TypeError, ValueError) as error:
            raise LedgerError(f"the release is not plain JSON ({error}): {release!r}") from error
        if count < 1 or (count > 1 and noise_position is not None):
            raise ValueError(f"count is {count}; give at least 1, and 1 with a noise_position")
        file = self._writable()
        with self._mutex:
            last = self._book.last.get(run)
            in_order = lines.parts_of(release) == 1 or step == self.next_step(run)
            # By the journal that their charge names, steps charged ahead may be given back: a run
            # that marks its steps in another one does not use them.
            marked = last is not None and last.journal == journal
            if noise_position is None and marked and in_order and self._ahead(run, key) >= count:
                self._check_most(run, count, most)
                self._reserved[run] -= count
                return self.position
            with self._turn(file):
                if noise_position is not None and self._is_replay(run, noise_position, key):
                    return self.position
                new = self._unused(run)
                apart = 0
                if step != self._book.next.get(run, 0) - sum(line["count"] for line in new):
                    apart = lines.parts_of(release) - 1
                self._check_most(run, count + apart, most)
                size = count if noise_position is not None else max(count, self.reserve)
                if most is not None:  # reserve no more than the run may charge
                    size = max(count, min(size, most - self.counted(run) - apart))
                size = self._affordable(key, count, size, apart)
                of = self._current(run, key)
                if of is None or self._book.declarations[of].most < size:
                    of = len(self._book.declarations)
                    new.append(self._declare(run, key, max(size, self.reserve)))
                charge = {"kind": "charge", "of": of, "step": step, "count": size}
                if noise_position is not None:
                    charge["noise"] = list(noise_position)
                elif journal is not None and size > count:
                    charge["journal"] = journal
                self._append(file, [*new, charge])
                self._own[run] = of
                self._reserved[run] = size - count
                return self.position

    def repeat(self, release: Mapping[str, Any], *, run: str) -> None:
        """Charges what was released once, for several runs, where it is not charged under `run`."""
        if not self.charged(run):
            self.charge(release, run=run, step=0, most=1)

    def give_back(self, run: str, begun: int, journal: str | None) -> None:
        """Refunds what a killed run had charged ahead and, by its journal, never began.

        Only steps of the run's last charge, and only by the very journal that this charge names:
        the same file, and the machine has not been started anew since, so that no write can have
        been lost.

        Args:
            run: the run's id.
            begun: by the journal, no step from this one on was begun.
            journal: what the journal that shows it is known by.
        """
        file = self._writable()
        with self._mutex, self._turn(file):
            last = self._book.last.get(run)
            if last is None or journal is None or last.journal != journal:
                return
            if run in self._reserved:  # charged by this very object, which knows what was used
                return
            saved = self._book.saved.get(run)
            begun = max(begun, last.step, 0 if saved is None else saved.step)
            unmade = last.step + last.count - begun
            if unmade > 0:
                self._append(file, [{"kind": "refund", "of": last.of, "count": unmade}])

    def close(self) -> None:
        """Refunds steps that were charged ahead and not taken, and closes the file."""
        if self._file is None or not self._file.is_open:
            return
        with self._mutex:
            try:
                if any(self._reserved.values()):
                    with self._turn(self._file):
                        unused = [line for run in self._reserved for line in self._unused(run)]
                        self._append(self._file, unused)
            finally:
                self._file.let_go("it was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _turn(self, file: LedgerFile) -> AbstractContextManager[None]:
        """Within it, lines may be written. This ledger has its file to itself all the time."""
        return nullcontext()

    def _load(self, file: LedgerFile, limit: Limit | None) -> None:
        self._read_on(file)
        if not self._book.hashes:
            file.clear()
            header = {"kind": "ledger", "format": lines.FORMAT, "id": secrets.token_hex(8)}
            self._append(file, [{**header, "limit": limit}])
            file.sync_folder()
            return
        if limit is not None and self.limit is None:
            self._append(file, [{"kind": "limit", "limit": limit}])
        elif limit is not None and limit != self.limit:
            raise LedgerError(
                f"ledger {self.path} has the budget (epsilon, delta) = {self.limit}, but {limit} "
                "was given. A data set's budget is set once: open the ledger without a limit"
            )

    def _read_on(self, file: LedgerFile) -> None:
        """Reads what the file has beyond what is known, and charges a torn last line."""
        data = file.read(file.size)
        self._book, torn = lines.parse(data, str(self.path), self._book)
        if self._book.hashes:
            file.size += len(data) if torn is None else torn
            if torn is not None:
                self._repair(file, len(data) - torn)

    def _repair(self, file: LedgerFile, length: int) -> None:
        """Overwrites a torn last line of `length` bytes with one that charges it.

        The new line is longer and only its last byte ends it, so that a crash while writing
        leaves a torn last line again.
        """
        torn = {"kind": "torn", "charged": self._book.worst(), "pad": ""}
        short = len(lines.encode(torn, self.position)[0])
        torn["pad"] = " " * max(0, length + 1 - short)
        self._append(file, [torn], overwrite=length)

    def _append(self, file: LedgerFile, new: list[dict[str, Any]], *, overwrite: int = 0) -> None:
        """Writes lines durably, all or none; `overwrite` is the length of what they replace."""
        end, data = self.position, b""
        numbered = []
        for fields in new:
            line, after = lines.encode(fields, end)
            numbered.append(({"seq": end.count, **fields}, after.hash))
            data, end = data + line, after
        file.append(data, overwrite=overwrite)
        file.sync()
        for numbered_fields, digest in numbered:
            self._book.apply(numbered_fields)
            self._book.hashes.append(digest)

    def _declare(self, run: str, key: str, most: int) -> dict[str, Any]:
        return {
            "kind": "release",
            "session": self._session,
            "pid": os.getpid(),
            "run": run,
            "most": most,
            "release": json.loads(key),
        }

    def _current(self, run: str, key: str) -> int | None:
        """The line by which this session declared the release of `run`, if it is the last one's.

        After another session's, it is declared anew: a torn line is charged to the last session.
        """
        of = self._book.current.get(run)
        if self._book.session != self._session or of is None:
            return None
        return of if self._book.declarations[of].key == key else None

    def _ahead(self, run: str, key: str) -> int:
        """How many steps of this release this object has charged ahead."""
        same = run in self._own and self._book.declarations[self._own[run]].key == key
        return self._reserved[run] if same else 0

    def _unused(self, run: str) -> list[dict[str, Any]]:
        """The line that refunds what this object has charged ahead of `run` and not used."""
        ahead, last = self._reserved.get(run, 0), self._book.last.get(run)
        # A copy of the run may have been charged since, whose steps these are not.
        if not ahead or last is None or last.of != self._own[run]:
            return []
        return [{"kind": "refund", "of": last.of, "count": ahead}]

    def _check_most(self, run: str, count: int, most: int | None) -> None:
        if most is not None and self.counted(run) + count > most:
            raise BudgetExceeded(
                f"run {run!r} has charged {self.counted(run)} of its {most} steps, and {count} "
                "more would exceed its budget (a step that a copy of the run made too counts for "
                "a whole cycle of its parts). Nothing was charged: the run is over"
            )

    def _affordable(self, key: str, count: int, size: int, apart: int) -> int:
        """How many steps to charge: `size`, or fewer if the guards allow only fewer."""
        while True:
            try:
                for guard in self._guards:
                    guard(self._book.entries(plus=(key, size + apart)))
                return size
            except BudgetExceeded:
                if size == count:
                    raise
                size = max(count, size // 2)

    def _is_replay(self, run: str, noise_position: tuple[int, str], key: str) -> bool:
        position, digest = noise_position
        used = self._book.noise.get((run, position))
        if used is None or used == (digest, key):
            return used is not None
        what = "other inputs" if used[0] != digest else "another release"
        raise NoiseReuse(
            f"run {run!r} has already used its noise at position {position}, with {what}; adding "
            "the same noise twice would reveal the difference. Use another seed, or resume from a "
            "checkpoint with the data, model and settings it was made with"
        )

    def _writable(self) -> LedgerFile:
        if self._file is None:
            raise LedgerError(
                f"ledger {self.path} was opened with Ledger.read and cannot be charged; open it "
                "with Ledger.open(path)"
            )
        self._file.require_in_place()  # also for a step that was charged ahead
        return self._file
