"""What runs have cost the same records together: the released models, and everything that was run.

An upper bound, by the accountant from what the ledgers were charged: no record is in the training
part of all runs. Runs without privacy have no bound, which is said in words. Nor have seeded ones:
who knows the seed knows the noise, and runs of one seed share their batches, of which two questions
cost more than of two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.charged_runs import QUESTION, ChargedRun, ChargedRuns, runs_beside
from plumbline.experiments.recipe import BudgetPart
from plumbline.formats import listed, tiny
from plumbline.mechanism.accountant import Accountant, Relation, epsilon
from plumbline.mechanism.ledger_format import Limit
from plumbline.mechanism.release import Release, Selection, StepRelease
from plumbline.mechanism.rounding import rounded_up

_PARTS = {
    "run": ("run", "runs"),
    "comparison": ("run of a comparison", "runs of comparisons"),
    "trial": ("trial", "trials"),
    "selection": ("private selection", "private selections"),
    "diagnosis": ("diagnosed run", "diagnosed runs"),
    QUESTION: ("question about the rows without a run", "questions about the rows without a run"),
}
_NAMED = 4  # the most titles in a sentence


@dataclass(frozen=True)
class Total:
    """What some runs cost a record together.

    Attributes:
        epsilon: Of those that have a bound, together.
        delta: At which.
        accountant: By whom it is computed.
        private: How many have a guarantee.
        unbounded: The methods of those that have none.
        seeded: How many of the private ones draw their noise from a seed. They are not in
            ``epsilon``.
        parts: How many there are, by what they were made for.
    """

    epsilon: float
    delta: float
    accountant: Accountant
    private: int
    unbounded: tuple[str, ...]
    seeded: int
    parts: Mapping[str, int]

    @property
    def runs(self) -> int:
        """How many there are."""
        return self.private + len(self.unbounded)

    @property
    def rest(self) -> int:
        """How many have a bound together."""
        return self.private - self.seeded

    @property
    def bounded(self) -> bool:
        """Whether all of it has a bound."""
        return self.rest == self.runs and math.isfinite(self.epsilon)

    @property
    def counted(self) -> str:
        """How many runs there are, in words."""
        named = [(count, _PARTS[part]) for part in _PARTS if (count := self.parts.get(part, 0))]
        return listed([f"{count:,} {words[count > 1]}" for count, words in named])

    @property
    def unbounded_words(self) -> str:
        """Why all of it has no bound."""
        one, reasons = self.runs == 1, []
        if self.unbounded:
            names = [name for name in dict.fromkeys(self.unbounded) if name]
            more = [f"{len(names) - _NAMED} others"] if len(names) > _NAMED + 1 else []
            shown = f" ({listed([*names[: _NAMED if more else None], *more])})" if names else ""
            some = "it" if one else f"{len(self.unbounded):,} of them"
            reasons.append(f"{some} had no privacy{shown}")
        if self.seeded:
            some = "it" if one else f"{self.seeded:,} of them"
            reasons.append(f"{some} drew noise from a seed, and who knows that knows the noise")
        if not reasons:
            reasons = ["what may fail adds up to more than delta"]
        what = "What it costs" if one else "What they cost together"
        return f"{what} has no bound, since {'; and '.join(reasons)}."

    @property
    def cost(self) -> str:
        """The bound, in words."""
        shown = f"at most epsilon {rounded_up(self.epsilon)}"
        return f"{shown} (delta {tiny(self.delta)}, by {self.accountant.upper()})"

    def to_json(self) -> dict[str, Any]:
        """As plain values; what has no bound has no number."""
        rest = self.rest and math.isfinite(self.epsilon)
        return {
            "epsilon": self.epsilon if self.bounded else None,
            "delta": self.delta,
            "accountant": self.accountant,
            "runs": dict(self.parts),
            "without privacy": len(self.unbounded),
            "seeded": self.seeded,
            "epsilon of the others": self.epsilon if rest and not self.bounded else None,
        }


@dataclass(frozen=True)
class Totals:
    """What the released models cost together, and what everything that was run does.

    Attributes:
        released: The models that were exported, or marked as released.
        everything: All runs, comparisons and trials.
        limit: What the released models may cost together, if that is limited.
        where: What the runs are on, in words.
        shared: Whether they share a ledger, which knows also of runs made elsewhere.
        notes: What a reader must know.
    """

    released: Total
    everything: Total
    limit: Limit | None
    where: str
    shared: bool
    notes: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """Both in words, and the notes."""
        return [self.released_words, self.everything_words, *self.notes]

    @property
    def released_words(self) -> str:
        """What the released models cost."""
        total, limit = self.released, self.limit
        most = (
            "" if limit is None else f" The limit is epsilon {limit[0]:g} (delta {tiny(limit[1])})."
        )
        if not total.runs:
            return f"No model {self.where} is marked as released.{most}"
        one = total.runs == 1
        models = "The released model" if one else f"The {total.runs} released models"
        if total.bounded:
            verb = "costs a record" if one else "cost a record together"
            return f"{models} {self.where} {verb} {total.cost}.{most}"
        return f"{models} {self.where}: {total.unbounded_words}{most}"

    @property
    def everything_words(self) -> str:
        """What everything that was run costs."""
        total = self.everything
        begin = f"Everything that was run {self.where}: {total.counted or 'nothing'}."
        if not total.runs:
            return begin
        if total.bounded:
            return f"{begin} Together that costs a record {total.cost}."
        rest = ""
        if total.rest and math.isfinite(total.epsilon):
            others = "one costs a record" if total.rest == 1 else f"{total.rest:,} cost a record"
            rest = f" The other {others} {'' if total.rest == 1 else 'together '}{total.cost}."
        return f"{begin} {total.unbounded_words}{rest}"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "released": self.released.to_json(),
            "everything": self.everything.to_json(),
            "limit": None if self.limit is None else list(self.limit),
            "words": self.sentences,
        }


def totals_beside(folder: Path, budget: BudgetPart, *, single: bool) -> Totals:
    """Both totals of the runs on the records of an experiment, or of one run.

    Args:
        folder: The experiment's folder; or that of the run.
        budget: At which delta, and for which relation.
        single: Whether it is a run's.
    """
    found = runs_beside(folder, single=single)
    return totals(found, delta=budget.delta, relation=budget.relation)


def totals(found: ChargedRuns, *, delta: float, relation: Relation = "add_remove") -> Totals:
    """Both totals of the runs on the same records, by PLD; with a private selection, by RDP.

    Args:
        found: The runs.
        delta: At which epsilon is stated. Where what the releases add to delta would leave less
            than half of it, it is stated at the sum of both.
        relation: What is protected.
    """

    def total(runs: Sequence[ChargedRun], asked: Iterable[str] = ()) -> Total:
        private = [one for one in runs if one.private]
        secure = [one for one in private if not one.seeded]
        names = dict.fromkeys([*asked, *(name for one in secure for name in one.charges)])
        charged: Counter[Release] = Counter()
        for name in names:
            for release, count in found.charges.get(name, ()):
                charged[release] += count
        failing = sum(r.delta * n for r, n in charged.items() if isinstance(r, StepRelease))
        stated = delta if failing <= delta / 2 else float(f"{delta + failing:.3g}")
        by: Accountant = "rdp" if any(isinstance(r, Selection) for r in charged) else "pld"
        spent = epsilon(charged.items(), delta=stated, accountant=by, relation=relation)
        return Total(
            spent,
            stated,
            by,
            private=len(private),
            unbounded=tuple(one.method for one in runs if not one.private),
            seeded=len(private) - len(secure),
            parts=Counter(one.part for one in runs),
        )

    of_runs = {one.run for one in found.runs}
    asked = [name for name in found.charges if name not in of_runs]
    notes = [f"Not counted, since it could not be read: {why}." for why in found.lost.values()]
    return Totals(
        released=total([one for one in found.runs if one.released]),
        everything=total(found.runs, asked),
        limit=found.limit,
        where=found.where,
        shared=bool(found.shared),
        notes=tuple(notes),
    )
