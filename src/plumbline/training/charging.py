"""The charges of a run: each step once, durably, before its first answer is seen."""

from __future__ import annotations

from typing import Any

from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.release import Query
from plumbline.training.distributed import Ranks
from plumbline.training.run_identity import inputs_digest, joint_digest, noise_position


class Charges:
    """How many steps a run was charged, and where.

    Args:
        plan: What a step releases, and how many steps there are.
        ledger: Where steps are charged, if anywhere; only the first rank has it.
        ranks: The processes that make the run.
        run: The run's id in the ledger.
        attempt: How often a seeded run was resumed with fresh noise and batches.
        count: How many steps were charged, where there is no ledger to ask.
        digest_key: Of the digests by which a ledger recognises a seeded run's steps; None where
            there is no ledger or no seed.
        journal: What the run's journal is known by, if it has one.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger | None,
        ranks: Ranks,
        *,
        run: str,
        attempt: int,
        count: int,
        digest_key: bytes | None,
        journal: str | None = None,
    ) -> None:
        self.run = run
        self.attempt = attempt
        self._plan = plan
        self._release = plan.release.of_run(run).to_dict()
        self._ledger = ledger
        self._ranks = ranks
        self._count = count
        self._digest_key = digest_key
        self._journal = journal
        self._mark = ""  # of the last step

    @property
    def count(self) -> int:
        """For how many steps the run is charged; if there is a ledger, what it says."""
        return self._count if self._ledger is None else self._ledger.counted(self.run)

    def charge(self, step: int, query: Query, *beside: Any, follows: bool = False) -> None:
        """Charges a step, once every rank has its part of the first answer.

        Args:
            step: Which step.
            query: Its first question.
            beside: What its later questions depend on.
            follows: Whether its answer depends on exact values of the step before too, and by that
                on those before it.

        Raises:
            LedgerError: If the step could not be charged.
        """
        mark = ""
        if self._digest_key is not None:
            chain = (self._mark,) if follows else ()
            mark = self._mark = inputs_digest(self._digest_key, query, *beside, *chain)
        marks = self._ranks.meet(f"step {step}", mark)
        if self._ledger is not None:
            position = None
            if self._digest_key is not None:
                position = noise_position(self.attempt, step), joint_digest(marks)
            self._ledger.charge(
                self._release,
                run=self.run,
                step=step,
                noise_position=position,
                most=self._plan.steps,
                journal=self._journal,
            )
        self._count += 1

    @property
    def mark(self) -> str:
        """What the first rank says of its count when the ranks meet next."""
        return str(self.count) if self._ranks.count > 1 else ""

    def hear(self) -> None:
        """Takes over what the first rank said of its count."""
        if not self._ranks.first:
            self._count = int(self._ranks.said[0])
