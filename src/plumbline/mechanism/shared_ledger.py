"""A ledger that several processes write to at once, and what its runs are.

It is locked for each line and not for as long as it is open: whoever writes first reads what others
have written, so that lines stay chained and none is lost. It also has what each run is, which
models were released, and what these may cost together.

Guarantee: as of `Ledger`. The last `release` line before a charge is always the writer's own, so
that a torn line is charged to whoever has written it. A model is marked as released only if all
released models together stay within the limit.
"""

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.ledger_file import LedgerFile
from plumbline.mechanism.ledger_format import Entries, LedgerError, Limit, canonical, seed_mark
from plumbline.mechanism.ledger_limit import BudgetExceeded, BudgetGuard, ledger_epsilon
from plumbline.mechanism.rounding import rounded_up

BEFORE = "before"
"""The field of a run's description that names what was asked for it, and charged by itself."""


class SharedLedger(Ledger):
    """What has been charged to a data set by many processes. Created by `open` or `read`."""

    _alone: ClassVar[bool] = False

    @property
    def released_limit(self) -> Limit | None:
        """What the released runs may cost together, (epsilon, delta), if there is such a limit."""
        return self._book.released_limit

    @property
    def released(self) -> tuple[str, ...]:
        """The runs whose models were released, in the order of their release."""
        return tuple(self._book.released)

    def about(self, run: str) -> Mapping[str, Any]:
        """What `run` is, as it was described; nothing if it was not."""
        return self._book.about.get(run, {})

    def describe(self, run: str, about: Mapping[str, Any]) -> None:
        """Writes down what `run` is, as plain JSON, unless that is there already."""
        file = self._writable()
        with self._mutex, self._turn(file):
            if run not in self._book.about:
                self._append(file, [{"kind": "about", "run": run, "about": dict(about)}])

    def limit_released(self, limit: Limit) -> None:
        """Sets what the released runs may cost together.

        Raises:
            LedgerError: if there is another limit already: it is set once.
        """
        epsilon, delta = BudgetGuard((float(limit[0]), float(limit[1]))).limit  # checks it
        file = self._writable()
        with self._mutex, self._turn(file):
            known = self.released_limit
            if known is None:
                self._append(file, [{"kind": "released_limit", "limit": [epsilon, delta]}])
            elif known != (epsilon, delta):
                raise LedgerError(
                    f"ledger {self.path} has the limit (epsilon, delta) = {known} on what is "
                    f"released, and {(epsilon, delta)} was given. A limit is set once: leave it out"
                )

    def release(self, run: str) -> None:
        """Writes down that the model of `run` is released; when this returns, it is on the disk.

        Raises:
            BudgetExceeded: if the released models would cost more together than the limit allows;
                the model must not be released then.
            LedgerError: if the run was never charged here.
        """
        file = self._writable()
        with self._mutex, self._turn(file):
            if run not in self.runs():
                raise LedgerError(f"ledger {self.path} has no charge of a run {run!r}")
            if run not in self._book.released:
                self.require_releasable(run)
                self._append(file, [{"kind": "released", "run": run}])

    def require_releasable(self, *runs: str, planned: Entries | None = None) -> None:
        """Refuses what could not be released beside the models that are.

        Args:
            runs: what would be released, as far as it is charged.
            planned: what would be released besides.

        Raises:
            BudgetExceeded: if there is a limit, and all of it together would cost more.
        """
        if self.released_limit is None:
            return
        most, delta = self.released_limit
        together = [*self.released, *runs]
        spent = ledger_epsilon([*self.entries_of(together), *(planned or [])], delta=delta)
        cost = f"epsilon {rounded_up(spent, 4)}"
        if math.isinf(spent):
            cost = "more than can be bounded, since a model has no privacy,"
        if any(seed_mark(run) for run in together):
            spent, cost = math.inf, "more than can be bounded, since the noise comes from a seed,"
        if not spent <= most:
            others = len(self.released)
            beside = f", with the {others} released already," if others else ""
            raise BudgetExceeded(
                f"the model could not be released: it would cost{beside} {cost} at delta "
                f"{delta:g}, and the limit of ledger {self.path} is epsilon {most:g}. A run "
                "with a smaller epsilon may fit"
            )

    def entries_of(self, runs: Iterable[str]) -> Entries:
        """What these runs have released, and what was asked before them, each counted once."""
        counted: dict[str, dict[str, Any]] = {}
        counts: Counter[str] = Counter()
        named = dict.fromkeys(
            one for run in runs for one in (run, *self.about(run).get(BEFORE, ()))
        )
        for run in named:
            for release, count in self.entries(run):
                counted[key := canonical(release)] = release
                counts[key] += count
        return [(counted[key], count) for key, count in counts.items()]

    def enter(self, run: str, entries: Entries) -> None:
        """Charges what `run` was charged elsewhere, as far as it is not here yet."""
        for release, count in self.missing(run, entries):
            most, step = self.counted(run) + count, self.next_step(run)
            self.charge(release, run=run, step=step, count=count, most=most)

    def missing(self, run: str, entries: Entries) -> Entries:
        """Of what `run` was charged elsewhere, what is not here."""
        here = {canonical(release): count for release, count in self.entries(run)}
        lacking = [(one, count - here.get(canonical(one), 0)) for one, count in entries]
        return [(release, count) for release, count in lacking if count > 0]

    @contextlib.contextmanager
    def _turn(self, file: LedgerFile) -> Iterator[None]:
        with file.held():
            if os.stat(file.path).st_size < file.size:
                file.let_go("its file was cut short by others")
                file.require_open()
            self._read_on(file)
            yield
