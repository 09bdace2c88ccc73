"""The ledger against the claim: whole, the same epsilon, and the charges that were planned.

Epsilon comes from the ledger alone: nothing that the result says goes into it. Guarantee: charges
that cost more than the result states, and charges that the settings do not ask for, contradict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from plumbline.experiments.charging import read_account
from plumbline.experiments.files import STATEMENT, FileError
from plumbline.experiments.manifest import Manifest
from plumbline.experiments.verification.checks import CONFIRMED, CONTRADICTED, UNKNOWN, Check
from plumbline.experiments.verification.claims import RunClaim
from plumbline.mechanism.accountant import Accountant, epsilon
from plumbline.mechanism.assumptions import APART
from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.ledger import Ledger, LedgerError
from plumbline.mechanism.ledger_limit import ledger_epsilon
from plumbline.mechanism.release import StepRelease
from plumbline.mechanism.rounding import rounded_up
from plumbline.mechanism.shared_ledger import SharedLedger

_SAME = 1e-6  # relative: an accountant of another version rounds differently
_NONE = "no differential privacy guarantee"
_CALIBRATED = 2e-3  # of epsilon: a calibration of another version stops elsewhere


def read_ledger(path: Path, manifest: Manifest | None) -> tuple[Ledger | None, list[Check]]:
    """Reads a ledger; None if it is not there or damaged."""
    what = "ledger"
    if not path.is_file():
        words = f"there is no ledger at {path}; if it is elsewhere, say where with --ledger"
        return None, [Check(what, UNKNOWN, words)]
    try:
        book = Ledger.read(path)
    except LedgerError as error:
        return None, [Check(what, CONTRADICTED, str(error))]
    lines = f"{book.position.count:,} lines, each with the checksum of the one before it"
    if manifest is None:
        words = f"{lines}; whether its end was cut off cannot be seen: there is no manifest"
        return book, [Check(what, CONFIRMED, words)]
    try:
        book.verify_position(manifest.ledger)
    except LedgerError as error:
        return book, [Check(what, CONTRADICTED, str(error).replace("checkpoint", "manifest"))]
    return book, [Check(what, CONFIRMED, f"{lines}, and none was lost since the run ended")]


def in_shared_ledgers(folder: Path, own: Ledger | None) -> Iterator[Check]:
    """The ledgers that the run shares with others have its charges; names no folder of a user's."""
    what = "shared ledger"
    try:
        account = read_account(folder)
    except FileError as error:
        yield Check(what, CONTRADICTED, str(error))
        return
    if account is None:
        return
    for path in account.ledgers:
        if not path.is_file():
            words = "it is not here; what this run and others cost together cannot be seen"
            yield Check(what, UNKNOWN, words)
            continue
        try:
            book = SharedLedger.read(path)
        except LedgerError as error:
            yield Check(what, CONTRADICTED, str(error))
            continue
        lacking = own is not None and any(book.missing(run, own.entries(run)) for run in own.runs())
        if lacking or account.run not in book.runs():
            yield Check(what, CONTRADICTED, "it lacks charges of the run, and states too little")
        else:
            marked = ", whose model is marked as released" if account.run in book.released else ""
            yield Check(what, CONFIRMED, f"it has every charge of the run{marked}")


def unconfirmed(claim: RunClaim, why: str) -> Iterator[Check]:
    """What ``Spent`` would have checked, where it could not: a claim is never passed over."""
    yield Check("epsilon", UNKNOWN, why)
    if claim.result is not None:
        yield Check("statement", UNKNOWN, why)
    yield Check("charges", UNKNOWN, why)


class Spent:
    """What the ledger says that a run has cost, against what the run says.

    Attributes:
        charged: How many steps.
    """

    def __init__(self, claim: RunClaim, book: Ledger, manifest: Manifest | None, own: bool) -> None:
        self._claim, self._book = claim, book
        asked = _asked(book, claim.spec.before)
        runs = sorted(book.runs() - asked.keys())
        self._run = manifest.run if manifest is not None else runs[0] if len(runs) == 1 else None
        self._others = [run for run in runs if run != self._run] if own else []
        self._entries = [] if self._run is None else book.entries(self._run)
        self.charged = sum(count for _, count in self._entries)
        self._before = [(release, 1) for release in asked.values()]

    def epsilon(self) -> float | None:
        """What the run's charges compose to; None if nobody knows which they are."""
        return None if self._run is None else self._by(self._claim.budget.accountant)

    def checks(self) -> Iterator[Check]:
        """Epsilon, the statement and the charges."""
        if self._run is None:
            words = "several runs were charged here, and the folder does not say which is its own"
            yield from unconfirmed(self._claim, words)
            return
        if self._others:
            words = f"the folder's ledger has {len(self._others)} more runs, such as "
            yield Check("charges", CONTRADICTED, f"{words}{self._others[0]}")
        yield self._same_epsilon()
        yield from self._said()
        yield self._as_planned()

    def _by(self, who: Accountant) -> float:
        return ledger_epsilon(
            [*self._before, *self._entries],
            delta=self._claim.budget.delta,
            accountant=who,
            relation=self._claim.budget.relation,
        )

    def _same_epsilon(self) -> Check:
        budget, stated = self._claim.budget, self._claim.epsilon
        found = self._by(budget.accountant)
        other: Accountant = "rdp" if budget.accountant == "pld" else "pld"
        before = " and what was asked before them" if self._before else ""
        words = (
            f"the {self.charged:,} charges{before} compose to {_shown(found)} at delta "
            f"{budget.delta:g} ({budget.accountant.upper()}; by {other.upper()} "
            f"{_shown(self._by(other))})"
        )
        if stated is None:
            return Check("epsilon", CONFIRMED, f"{words}, which is what was spent so far")
        if found == stated or math.isclose(found, stated, rel_tol=_SAME):
            return Check("epsilon", CONFIRMED, f"{words}, which is what the result states")
        more = "more" if found > stated else "less"
        words += f", {more} than the {_shown(stated)} that the result states"
        return Check("epsilon", CONTRADICTED, words)

    def _said(self) -> Iterator[Check]:
        """The statement in words says this epsilon too."""
        if self._claim.result is None:
            return
        text = self._claim.result["statement"]
        path = self._claim.folder / STATEMENT
        if not path.is_file():
            yield Check("statement", UNKNOWN, "there is no statement.txt")
        elif path.read_text(encoding="utf-8", errors="replace").strip() != text.strip():
            yield Check("statement", CONTRADICTED, "statement.txt is not the result's statement")
        else:
            found = self._by(self._claim.budget.accountant)
            claimed = f"epsilon = {rounded_up(found)}" if math.isfinite(found) else _NONE
            there = claimed in " ".join(text.split())
            words = "says" if there else "does not say"
            outcome = CONFIRMED if there else CONTRADICTED
            yield Check("statement", outcome, f"the statement {words} {claimed!r}")
            if math.isfinite(found):
                yield self._kept_apart(" ".join(text.split()))

    def _kept_apart(self, text: str) -> Check:
        """The statement says of the records what the recipe asks for."""
        isolation = self._claim.spec.recipe.isolation
        there = APART[isolation] in text
        words = f"by construction, as the recipe asks: {APART[isolation]}"
        if not there:
            words = f"the statement does not say what the recipe asks for ({isolation})"
        return Check("isolation", CONFIRMED if there else CONTRADICTED, words)

    def _as_planned(self) -> Check:
        """The charges are those that the settings ask for: no more of them, and no others."""
        what, claim = "charges", self._claim
        if not self._entries:
            return Check(what, UNKNOWN, "nothing was charged yet")
        releases = [StepRelease.from_dict(release) for release, _ in self._entries]
        if len(releases) > 1:
            return Check(what, CONTRADICTED, f"the ledger has {len(releases)} kinds of charges")
        release = releases[0]
        records = claim.records(release.sampling.rate)
        if records is None:
            words = f"the sampling rate is {release.sampling.rate:g}, and "
            if claim.expected_batch_size is None:
                asked = claim.budget.sampling_rate
                words += f"the recipe asks for {'none' if asked is None else f'{asked:g}'}"
            else:
                words += "no number of records gives it for a mean batch of "
                words += f"{claim.expected_batch_size:,}"
            return Check(what, CONTRADICTED, words)
        try:
            plan = claim.plan(records)
        except (KeyError, TypeError, ValueError) as error:
            return Check(what, UNKNOWN, f"the settings could not be planned again: {error}")
        steps = claim.result["steps"] if claim.result is not None else self.charged
        if len(self._before) < len(claim.spec.before):
            words = "what the settings ask before the first step is not charged"
            return Check(what, CONTRADICTED, words)
        if not steps <= self.charged <= plan.steps:
            words = f"{self.charged:,} steps are charged, {steps:,} were made and {plan.steps:,} "
            return Check(what, CONTRADICTED, f"{words}are planned")
        parts = claim.spec.method.parts
        turn = f" (in its part's turn, one of {parts})" if parts > 1 else ""
        words = (
            f"{self.charged:,} of {plan.steps:,} planned steps, each of {records:,} records with "
            f"probability {release.sampling.rate:.4g}{turn} and noise "
            f"{release.noise_multiplier:.4g}"
        )
        planned = plan.release.of_run(self._run or "")
        if release == planned:
            return Check(what, CONFIRMED, f"{words}: no more, and no others, than the recipe asks")
        noise = planned.noise_multiplier
        if _calibrated(release, planned, plan):
            words += f"; calibrated here, the noise would be {noise:.6g}"
            return Check(what, UNKNOWN, words)
        return Check(what, CONTRADICTED, f"{words}; the recipe asks for noise {noise:.4g}")


def _asked(book: Ledger, before: Sequence[StepRelease]) -> dict[str, dict[str, Any]]:
    """The charges, by their name in the ledger, of what is asked before the first step."""
    missing, found = [one.to_dict() for one in before], {}
    for run in sorted(book.runs()):
        for release in missing:
            if book.entries(run) == [(release, 1)]:
                found[run] = release
                missing.remove(release)
                break
    return found


def _calibrated(release: StepRelease, planned: StepRelease, plan: Plan) -> bool:
    """Whether the noise meets the plan's budget as well as that which was found here."""
    asked, wanted = (
        [(query.name, query.sensitivity) for query in one.queries] for one in (release, planned)
    )
    budget = plan.budget.epsilon
    if budget is None or asked != wanted or release.sampling != planned.sampling:
        return False
    cost = epsilon(
        [*((one, 1) for one in plan.before), (release, plan.steps)],
        delta=plan.delta,
        accountant=plan.accountant,
        relation=plan.relation,
    )
    return (1 - _CALIBRATED) * budget <= cost <= budget


def _shown(epsilon: float) -> str:
    return "no bound" if math.isinf(epsilon) else f"epsilon {rounded_up(epsilon, 6)}"
