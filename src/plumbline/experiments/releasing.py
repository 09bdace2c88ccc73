"""Marking a model as released: exported, published, or handed to anybody.

What is released counts in a total of its own (``together``), which a limit acts on. The mark is on
the disk before the model leaves: whoever exports one calls ``mark_released`` first.
"""

from __future__ import annotations

import os
from pathlib import Path

from plumbline.experiments.charging import Named, Part, about, keep_account, read_account
from plumbline.experiments.files import LEDGER, RESULT, FileError
from plumbline.experiments.manifest import read_manifest
from plumbline.experiments.run_spec import RunSpec, read_spec
from plumbline.experiments.together import Totals, totals_beside
from plumbline.mechanism.shared_ledger import SharedLedger


def mark_released(folder: str | os.PathLike[str], *, ledger: Named = None) -> Totals:
    """Marks the model of a finished run as released, in its own ledger and in those it shares.

    To mark it again changes nothing.

    Args:
        folder: The run's folder.
        ledger: A ledger to mark it in, in place of the shared ones that the folder names and that
            are lost; those that are there are marked as well, and keep their limits. What the run's
            own ledger has is charged there.

    Returns:
        What the released models cost together now, and everything that was run.

    Raises:
        BudgetExceeded: If the released models would cost more than the limit on them. Nothing is
            marked then, and the model must not leave.
        FileError: If the folder is no finished run's, or a shared ledger is not there.
        LedgerError: If a ledger cannot be read or written.
    """
    home = Path(folder)
    if not (home / RESULT).is_file():
        raise FileError(f"{home} has no {RESULT}: it is no finished run, and has no model.")
    spec, account, own = read_spec(home), read_account(home), home / LEDGER
    shared = () if account is None else account.ledgers
    if lost := [path for path in shared if ledger is None and not path.is_file()]:
        raise FileError(
            f"The ledger that the run shares with others is not there: {lost[0]}. Restore it, or "
            "name another one with --ledger (in Python, ledger=); it then begins with this run."
        )
    if ledger is not None:
        there = [path.resolve() for path in shared if path.is_file()]
        shared = tuple(dict.fromkeys([*there, Path(ledger).resolve()]))
    manifest = read_manifest(home)
    known = account.run if account is not None else None if manifest is None else manifest.run
    if known is None:  # a private selection on other data than a table, of which no ledger knows
        return totals_beside(home, spec.recipe.budget, single=True)
    for path in shared:
        with SharedLedger.open(path) as book:
            if own.is_file():
                _bring_over(book, own, spec, home, known)
            book.require_releasable(known)
    for path in (*shared, own):
        if path in shared or path.is_file():
            with SharedLedger.open(path) as book:
                book.release(known)
    if ledger is not None:
        keep_account(home, known, shared)
    return totals_beside(home, spec.recipe.budget, single=True)


def _bring_over(book: SharedLedger, own: Path, spec: RunSpec, home: Path, run: str) -> None:
    """Charges a shared ledger with what a run's own has, where that was lost."""
    charged = SharedLedger.read(own)
    for name in sorted(charged.runs()):
        book.enter(name, charged.entries(name))
    part: Part = "trial" if spec.held_out else "run"
    book.describe(run, about(spec, part, home, sorted(charged.runs() - {run})))
