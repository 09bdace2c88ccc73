"""The runs on the same records, from the ledgers that were charged: each counts once.

A ledger that runs share says what each run is. A run's own ledger, in its folder, counts if no
shared one has the run: since it is on other data than a table, or the shared ledger was lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.charging import read_account
from plumbline.experiments.files import ACCOUNT, LEDGER, SCHEMA_LEDGER
from plumbline.experiments.known_tables import RECORD
from plumbline.experiments.private_schema import SCHEMA_RUN
from plumbline.mechanism.ledger import LedgerError
from plumbline.mechanism.ledger_format import Limit, seed_mark
from plumbline.mechanism.release import Release, Selection, StepRelease, release_from_dict
from plumbline.mechanism.shared_ledger import BEFORE, SharedLedger
from plumbline.training.full_batch_queries import name_of

QUESTION = "question"
"""What was made of a question that no run has used, in place of a run."""
_RUN = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{16})?")

Charges = list[tuple[Release, int]]


@dataclass(frozen=True)
class ChargedRun:
    """A run, as its ledger has it.

    Attributes:
        run: Its id.
        title: Its name; empty if nobody has said.
        method: The title of its method.
        part: What it was made for.
        charges: The names of its charges: its own, and what was asked before its first step.
        private: Whether it has a guarantee.
        seeded: Whether its noise, or that of what was asked before it, comes from a seed.
        released: Whether its model was released.
    """

    run: str
    title: str
    method: str
    part: str
    charges: tuple[str, ...]
    private: bool
    seeded: bool
    released: bool


class ChargedRuns:
    """What was charged on the same records.

    Args:
        ledgers: Those that the runs share.
        own: Folders of runs whose own ledgers count too.

    Attributes:
        runs: The runs, and what was asked of the rows and no run has used.
        charges: What was charged, by name: by the id of a run, or the name of what was asked.
        limit: What the released models may cost together, if that is limited.
        shared: The ledgers that the runs share.
        where: What they are on, in words.
        lost: The shared ledgers that could not be read, and why.
    """

    def __init__(self, ledgers: Iterable[Path], own: Iterable[Path] = ()) -> None:
        self.runs: list[ChargedRun] = []
        self.charges: dict[str, Charges] = {}
        self.limit: Limit | None = None
        self.shared = tuple(ledgers)
        self.where = "here"
        self.lost: dict[Path, str] = {}
        for path in self.shared:
            self.where = "on this table" if (path.parent / RECORD).is_file() else "on this ledger"
            try:
                book = SharedLedger.read(path)
            except LedgerError as error:
                self.lost[path] = str(error)
                continue
            self._add_shared(book)
        for folder in own:
            for name in (SCHEMA_LEDGER, LEDGER):
                if (folder / name).is_file():
                    self._add_own(SharedLedger.read(folder / name))
        used = {name for one in self.runs for name in one.charges}
        for name in sorted(self.charges.keys() - used):
            self._add(name, {"part": QUESTION}, [name], False)

    def _add_shared(self, book: SharedLedger) -> None:
        self.limit = self.limit or book.released_limit
        asked = {name for run in book.runs() for name in book.about(run).get(BEFORE, ())}
        for run in sorted(book.runs() - self.charges.keys()):
            self.charges[run] = _charges(book, run)
        known = {one.run for one in self.runs}
        for run in sorted(book.runs() - asked - known):
            if (about := book.about(run)) or _RUN.fullmatch(run):
                names = (*about.get(BEFORE, ()), run)
                self._add(run, about, names, run in book.released)

    def _add_own(self, book: SharedLedger) -> None:
        names = sorted(book.runs())
        own = [name for name in names if not name.startswith(SCHEMA_RUN)]
        if any(name in self.charges for name in own):
            return
        for name in names:
            self.charges.setdefault(name, _charges(book, name))
        if own:
            released = [name for name in own if name in book.released]
            self._add((released or own)[0], {}, names, bool(released))

    def _add(
        self, run: str, about: Mapping[str, Any], names: Sequence[str], released: bool
    ) -> None:
        releases = [one for name in names for one, _ in self.charges.get(name, ())]
        private = all(map(_bounded, releases))
        seeded = seed_mark(run) is not None or any(map(_seeded, releases))
        title, method = str(about.get("title", "")), str(about.get("method", ""))
        part = str(about.get("part", "run"))
        self.runs.append(
            ChargedRun(run, title, method, part, tuple(names), private, seeded, released)
        )


def runs_beside(folder: Path, *, single: bool) -> ChargedRuns:
    """All runs on the records of an experiment's runs, or of one run.

    Args:
        folder: The experiment's folder; or that of the run.
        single: Whether it is a run's.
    """
    root = folder.resolve().parent if single else folder
    homes = [one for one in sorted(root.iterdir()) if one.is_dir()]
    accounts = {home: read_account(home) for home in homes if (home / ACCOUNT).is_file()}
    chosen = [folder.resolve()] if single else homes
    ledgers = {
        path: None
        for home in chosen
        if (account := accounts.get(home)) is not None
        for path in account.ledgers
    }
    alike = [
        home
        for home in homes
        if (account := accounts.get(home)) is None or ledgers.keys() & {*account.ledgers}
    ]
    return ChargedRuns(ledgers, alike)


def _charges(book: SharedLedger, name: str) -> Charges:
    return [(release_from_dict(release), count) for release, count in book.entries(name)]


def _bounded(release: Release) -> bool:
    steps = [one for one, _ in release.releases] if isinstance(release, Selection) else [release]
    return all(one.unbounded_reason is None and one.noise_multiplier > 0 for one in steps)


def _seeded(release: Release) -> bool:
    """Whether a question that was asked of all records says so of its noise."""
    queries = release.queries if isinstance(release, StepRelease) else ()
    return any(query.name.endswith(name_of("", seeded=True)) for query in queries)
