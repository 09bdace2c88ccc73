"""Where a run is charged: in its own folder, and in the ledgers that it shares with other runs.

By default a run on a table is charged to the table's ledger (``table_ledgers``), and its own, which
stays in its folder and travels with it, has the same charges. A ledger that is named takes the
place of both. Runs on other data have their own only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from plumbline.experiments.files import ACCOUNT, FileError, read_json, write_json
from plumbline.experiments.recipe import DataPart, Recipe
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.table_ledgers import ledgers_of
from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.ledger import BudgetExceeded, Ledger, LedgerError
from plumbline.mechanism.ledger_limit import BudgetGuard
from plumbline.mechanism.run_ledger import RunLedger
from plumbline.mechanism.shared_ledger import BEFORE, SharedLedger
from plumbline.training.distributed import Ranks

Part = Literal["run", "comparison", "trial", "selection", "diagnosis"]
"""What a run was made for."""
Named = str | os.PathLike[str] | None


def shared_ledgers(data: DataPart, named: Named = None) -> tuple[Path, ...]:
    """The ledgers that runs on the data share: the one that is named, or those of its table.

    Raises:
        FileError: If the state folder cannot be used.
    """
    return ledgers_of(data).paths if named is None else (Path(named),)


def open_ledger(
    own: Path, data: DataPart, named: Named = None, *, reserve: int = 1, shared: bool = True
) -> Ledger:
    """Opens the ledger that a run is charged to.

    Args:
        own: The run's own.
        data: Its data, which say whose ledger it shares.
        named: A ledger that takes the place of both.
        reserve: How many steps are charged at a time.
        shared: Whether others may know of the run; if not, it has its own only.

    Raises:
        LedgerError: If one cannot be opened.
        FileError: If the state folder cannot be used.
    """
    if named is not None:
        return SharedLedger.open(named, reserve=reserve)
    paths = shared_ledgers(data) if shared else ()
    try:
        return RunLedger.within(own, paths, reserve=reserve)
    except LedgerError as error:
        if not paths:
            raise
        raise LedgerError(
            f"{error}. Runs on this table are charged to its ledger, {paths[0]}; to charge another "
            "one, name it with --ledger (in Python, ledger=)"
        ) from error


def shared_by(ledger: Ledger) -> tuple[SharedLedger, ...]:
    """The ledgers that a run shares with others, if any."""
    if isinstance(ledger, SharedLedger):
        return (ledger,)
    return ledger.shared if isinstance(ledger, RunLedger) else ()


def apply_limit(
    recipe: Recipe, named: Named, limit: float | None, *, to_release: bool = False
) -> None:
    """Limits what the released models may cost together, for all runs that share a ledger.

    Args:
        recipe: What is to be run.
        named: The ledger that runs share, in place of the table's.
        limit: The epsilon, at the recipe's delta; None leaves it as it is.
        to_release: Refuse a run that by itself is above the limit, before anything is charged.

    Raises:
        BudgetExceeded: If it is.
        LedgerError: If there is another limit already.
        ValueError: If it is no limit, or the data have no ledger that runs share.
    """
    if not Ranks.here().first:
        return
    paths, delta = shared_ledgers(recipe.data, named), recipe.budget.delta
    if limit is not None and not paths:
        raise ValueError(
            f"The limit is {limit:g}, and these data have no ledger that all their runs share, as "
            "a table has: name one with --ledger (in Python, ledger=)."
        )
    given = None if limit is None else BudgetGuard((float(limit), delta)).limit  # checks it
    epsilon = recipe.budget.epsilon if to_release and recipe.methods[0].private else None
    for path in paths:
        kept = SharedLedger.read(path).released_limit if path.is_file() else None
        most = kept or given
        if most is not None and epsilon is not None and epsilon > most[0] and delta >= most[1]:
            before = "" if kept is None else f", by the limit that is kept in {path}"
            raise BudgetExceeded(
                f"the run may cost epsilon {epsilon:g}, and all models on these records that are "
                f"released may cost {most[0]:g} together (delta {most[1]:g}){before}: its model "
                "could not be released. Nothing was charged: give a smaller --epsilon"
            )
    if given is not None:
        for path in paths:
            with SharedLedger.open(path) as book:
                book.limit_released(given)


def require_releasable(ledger: Ledger, run: str, plan: Plan) -> None:
    """Refuses a run whose model could not be released within the limits of its ledgers.

    Raises:
        BudgetExceeded: If it would cost too much beside the models that are released.
    """
    for one in shared_by(ledger):
        before = one.about(run).get(BEFORE, ())
        one.require_releasable(*before, planned=[(plan.release.of_run(run).to_dict(), plan.steps)])


class Account(NamedTuple):
    """The ledgers that a run shares with others, and its id there."""

    run: str
    ledgers: tuple[Path, ...]


def write_account(folder: Path, spec: RunSpec, part: Part, run: str, ledger: Ledger) -> None:
    """Writes what a run is into the ledgers that it shares, and into its folder which these are.

    Args:
        folder: The run's folder.
        spec: What is run.
        part: What it is made for.
        run: Its id.
        ledger: Where it is charged, with what was asked before its first step.
    """
    shared = shared_by(ledger)
    asked = ledger.runs() if isinstance(ledger, RunLedger) else ledger.charged_here()
    found = spec.data.found
    asked |= set() if found is None else {found.run}
    for one in shared:
        one.describe(run, about(spec, part, folder, sorted(asked - {run})))
    if shared:
        keep_account(folder, run, [one.path for one in shared])


def about(spec: RunSpec, part: Part, folder: Path, before: list[str]) -> dict[str, object]:
    """What a run is, for the ledgers that it shares."""
    place = str(folder.resolve())
    named = {"title": spec.name, "method": spec.method.title}
    return {**named, "part": part, "folder": place, BEFORE: before}


def keep_account(folder: Path, run: str, ledgers: Sequence[Path]) -> None:
    """Writes into a run's folder which ledgers it shares."""
    places = [str(path.resolve()) for path in ledgers]
    write_json(folder / ACCOUNT, {"run": run, "ledgers": places})


def read_account(folder: Path) -> Account | None:
    """Which ledgers a run shares; None if it shares none.

    Raises:
        FileError: If that is damaged.
    """
    if not (folder / ACCOUNT).is_file():
        return None
    match read_json(folder / ACCOUNT):
        case {"run": str(run), "ledgers": [*places]} if all(isinstance(one, str) for one in places):
            return Account(run, tuple(map(Path, places)))
    raise FileError(f"{folder / ACCOUNT} is damaged: it does not name ledgers.")
