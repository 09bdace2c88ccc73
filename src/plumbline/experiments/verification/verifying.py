"""Is a run what it says? Its claims against its ledger, its recipe and its files.

Epsilon is derived again from the ledger alone, the charges from the recipe, and every file is
compared with the hash that was recorded when the run ended. Each check is confirmed, contradicted,
or could not be made, with the reason. What no file can show is ``NEVER``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.files import FileError
from plumbline.experiments.manifest import read_manifest
from plumbline.experiments.verification import evidence
from plumbline.experiments.verification.charges import (
    Spent,
    in_shared_ledgers,
    read_ledger,
    unconfirmed,
)
from plumbline.experiments.verification.checks import CONTRADICTED, UNKNOWN, Check, Outcome
from plumbline.experiments.verification.claims import RunClaim, read_claim
from plumbline.mechanism.ledger import LedgerError

NEVER = (
    "that the noise was drawn as the ledger says, and that the code which ran is that of the "
    "version recorded: run it yourself, or audit it (`plumbline audit`)",
    "that the records were those of the data set named, and that each was one person's",
    "what else was done with the same records: other runs, tuning, or looking at them",
    "that the folder was not forged as a whole: its hashes find accidents and edits, and whoever "
    "can write all of its files can write others that agree",
)
"""What can never be confirmed from a run's files."""


@dataclass(frozen=True)
class Verification:
    """What was found about a run.

    Attributes:
        claim: What the folder says.
        epsilon: Derived from the ledger; None where that could not be done.
        checks: Everything that was looked at, in order.
        charged: How many steps the ledger has of the run.
    """

    claim: RunClaim
    epsilon: float | None
    checks: tuple[Check, ...]
    charged: int = 0

    @property
    def lost(self) -> int:
        """How many steps of a finished run were charged, and their results lost."""
        return 0 if self.claim.result is None else max(0, self.charged - self.claim.result["steps"])

    def of(self, outcome: Outcome) -> list[Check]:
        """The checks with this outcome."""
        return [check for check in self.checks if check.outcome == outcome]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "folder": str(self.claim.folder),
            "run": self.claim.spec.name,
            "finished": self.claim.result is not None,
            "epsilon": {"stated": self.claim.epsilon, "from the ledger": self.epsilon},
            "delta": self.claim.budget.delta,
            "checks": [vars(check) for check in self.checks],
            "never confirmed": list(NEVER),
        }


def verify(folder: Path, *, data: bool = False, ledger: Path | None = None) -> Verification:
    """Checks what a run's folder says.

    Args:
        folder: The folder of one run.
        data: Whether to load the data set that the recipe names, to count its records and to judge
            the model again.
        ledger: The ledger that the run was charged to, where it is not in the folder.

    Raises:
        FileError: If it is not the folder of a run, or its settings or result cannot be read.
    """
    claim = read_claim(folder)
    checks = []
    if claim.result is None:
        words = "the run is not finished: there is no result to confirm"
        checks.append(Check("result", UNKNOWN, words))
    try:
        manifest = read_manifest(folder)
    except FileError as error:
        manifest = None
        checks.append(Check("manifest", CONTRADICTED, str(error)))
    path = folder / "ledger" if ledger is None else ledger
    book, found = read_ledger(path, manifest)
    checks += found
    epsilon, charged = None, 0
    if book is None:
        checks += unconfirmed(claim, "it follows from the ledger, which could not be read")
    else:
        spent = Spent(claim, book, manifest, own=ledger is None)
        try:
            epsilon, charged = spent.epsilon(), spent.charged
            checks += spent.checks()
        except LedgerError as error:  # a charge that is no release
            checks.append(Check("epsilon", CONTRADICTED, str(error)))
    checks += in_shared_ledgers(folder, book if ledger is None else None)
    checks += [*evidence.settings(claim), *evidence.files(claim, manifest)]
    checks += evidence.weights(claim)
    if book is not None:
        checks += evidence.checkpoint(claim, book)
    checks += evidence.with_data(claim, book) if data else [evidence.without_data(claim)]
    checks += evidence.versions(claim)
    return Verification(claim, epsilon, tuple(checks), charged)
