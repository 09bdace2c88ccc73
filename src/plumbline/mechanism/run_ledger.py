"""A run's own ledger, of which every charge is made in shared ledgers first.

The run's own one stays in its folder and travels with it: from it alone its epsilon is derived
again. The shared ones say what all runs on the same records cost together.

Guarantee: whatever happens, a shared ledger has at least what the run's own has; each by itself
never says less than what was released. What is refunded, and by which evidence, each decides by the
rules of `Ledger` from its own lines.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any, Self

from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.ledger_format import Position, canonical, parts_of
from plumbline.mechanism.shared_ledger import SharedLedger


class RunLedger(Ledger):
    """A ledger that charges others before itself. Created by `within`."""

    _shared: tuple[SharedLedger, ...] = ()

    @classmethod
    def within(
        cls,
        path: str | os.PathLike[str],
        shared: Iterable[str | os.PathLike[str]],
        *,
        reserve: int = 1,
    ) -> Self:
        """Opens a run's own ledger, and the shared ledgers that it is charged to.

        What the own one has already and a shared one lacks, since it was lost or is new, is charged
        there now.

        Args:
            path: the run's own.
            shared: the others.
            reserve: as of `Ledger.open`.

        Raises:
            LedgerError: as `Ledger.open` does.
        """
        with contextlib.ExitStack() as opened:
            ledger = cls.open(path, reserve=reserve)
            opened.enter_context(ledger)
            for other in shared:
                one = opened.enter_context(SharedLedger.open(other, reserve=reserve))
                for run in sorted(ledger.runs()):
                    one.enter(run, ledger.entries(run))
                ledger._shared += (one,)
            opened.pop_all()  # they stay open
        return ledger

    @property
    def shared(self) -> tuple[SharedLedger, ...]:
        """The shared ledgers."""
        return self._shared

    def require_room(self, release: Mapping[str, Any], count: int) -> None:
        """As of `Ledger`, by the budgets of all."""
        for one in self._shared:
            one.require_room(release, count)
        super().require_room(release, count)

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
        """As of `Ledger`; when this returns, the charge is on the disk in all of them."""
        left = None if most is None else most - self.counted(run)
        replay = noise_position is not None and self._is_replay(
            run, noise_position, canonical(release)
        )
        if not replay and (left is None or count <= left):
            for one in self._shared:
                # A copy of the run may have been charged there too, beyond its plan.
                apart = 0 if step == one.next_step(run) else parts_of(release) - 1
                # Without the position of its noise: a seed that is used again for other data, or
                # by another run, is the own ledger's to refuse. In totals a seeded run has no
                # bound.
                one.charge(
                    release,
                    run=run,
                    step=step,
                    count=count,
                    most=None if left is None else one.counted(run) + left + apart,
                    journal=journal,
                )
        return super().charge(
            release,
            run=run,
            step=step,
            count=count,
            noise_position=noise_position,
            most=most,
            journal=journal,
        )

    def repeat(self, release: Mapping[str, Any], *, run: str) -> None:
        """As of `Ledger`, in each by itself."""
        for one in self._shared:
            one.repeat(release, run=run)
        if not self.charged(run):
            super().charge(release, run=run, step=0, most=1)

    def give_back(self, run: str, begun: int, journal: str | None) -> None:
        """As of `Ledger`, of each by its own lines."""
        super().give_back(run, begun, journal)
        for one in self._shared:
            one.give_back(run, begun, journal)

    def note_checkpoint(self, run: str, *, step: int, token: str) -> None:
        """As of `Ledger`, in all of them."""
        for one in self._shared:
            one.note_checkpoint(run, step=step, token=token)
        super().note_checkpoint(run, step=step, token=token)

    def later_checkpoint(self, run: str, *, token: str, position: Position) -> int | None:
        """As of `Ledger`; also if only a shared ledger knows: the folder was then restored."""
        later = super().later_checkpoint(run, token=token, position=position)
        own = self.last_checkpoint(run)
        for one in self._shared:
            there = one.last_checkpoint(run)
            if there is None or there.token == token:
                continue
            if there.step > (0 if own is None else own.step):
                later = max(later or 0, there.step)
        return later

    def close(self) -> None:
        """Refunds what was charged ahead and not used, and closes all of them."""
        try:
            super().close()
        finally:
            for one in self._shared:
                one.close()
