"""The guarantee of a run in words, with its assumptions, for people who are responsible for data.

A `Statement` holds every fact; `text()` is prose for a reader who knows data protection but not
differential privacy, `json()` has the same facts for programs. It claims nothing by itself: its
epsilon is the accountant's, and numbers in the prose are rounded to the safe side (epsilon up).
"""

import json
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

from plumbline.mechanism import accountant as accounting
from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.assumptions import Assumptions, Company, Isolation, Unit, assumptions
from plumbline.mechanism.calibration import Plan
from plumbline.mechanism.release import (
    CyclicSampling,
    GaussianQuery,
    PoissonSampling,
    Sampling,
    StepRelease,
)
from plumbline.mechanism.rounding import rounded_up
from plumbline.results import to_json

COVERED = (
    "the model's weights after every step, and everything computed from them later without "
    "looking at the data again: predictions, further training on other data, published copies",
)

# In the order of what matters.
NOT_COVERED = (
    "tuning: other runs on the same data, made to choose settings, cost privacy of their own",
    "preprocessing: statistics taken from the data before training, such as means, scales, "
    "vocabularies or the choice of features",
    "exact figures: training loss and accuracy, and diagnostics of single records' gradients",
    "records that the model is only evaluated on",
)

GIVEN = (
    "This holds for the weights given what was taken from the data as they are before training, "
    "which is listed under what is not covered, and which may itself tell of single records."
)
"""The end of the headline where something was taken from the data as they are."""

_ANSWERED = "the answers to what was asked before training, with their noise"

# The usual rule of thumb: Ponomareva et al. 2023, "How to DP-fy ML", call up to 10 reasonable.
_WEAK_EPSILON = 10.0

_ACCOUNTANTS = {
    "pld": "privacy loss distributions (PLD)",
    "rdp": "Rényi differential privacy (RDP)",
}

_QUESTIONS = {"gradient": "the gradient (the direction in which to change the model)"}


def how_often_right(epsilon: float, delta: float) -> str:
    """How often whoever sees a run can at most be right about a record, where half is guessing."""
    odds = _odds(epsilon)
    percent = math.ceil(1e4 * (odds + delta) / (1 + odds)) / 100
    return f"at most {percent:g}% of the time" if percent < 100 else "perhaps every time"


def _odds(epsilon: float) -> float:
    return math.exp(min(float(rounded_up(epsilon).replace(",", "")), 50.0))


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a run guarantees, to whom, under which assumptions.

    Attributes:
        unit: whose presence is protected, one "record" or one "user" with all their records.
        relation: what "the data with and without it" means; see `accountant`.
        epsilon: spent so far; infinite if there is no guarantee.
        delta: the probability with which the bound may fail.
        accountant: the accountant that computed epsilon.
        other_epsilon: the other accountant's value, for comparison.
        budget_epsilon: the most that may be spent, if it was stated.
        sampling: how batches were drawn.
        queries: the noisy queries of one step.
        bands: over how many steps the noise of the gradient is correlated; 1 for independent noise.
        before: what was released about the data before the first step, each once.
        noise_source: a sentence about the source of randomness.
        seeded: whether anyone who knows the seed can recompute the randomness.
        isolation: how records were kept apart: "vmap" or "loop".
        company: what a record went through the model with: "none", "public" inputs or its "bucket".
        recorded: whether the operations of a single record's run were recorded and repeated.
        audited: what was found when neighbouring batches of the run were compared, if they were.
        steps_done: steps charged so far.
        steps_planned: steps of the whole run.
        public_constants: what is treated as known to everybody, by name.
        records: the number of units, one of the public constants.
        records_public: whether it was stated as public, rather than taken from the data.
        records_noisy: whether it was released with noise, and epsilon covers that.
        given: what was taken from the data as they are before training, such as the categories of
            a table: the guarantee holds for the weights given these.
        stated: what was stated about the data without looking at them.
        covered: what the guarantee covers.
        not_covered: what it does not cover.
        warnings: sentences that a reader should not miss.
        no_guarantee_reason: why epsilon is infinite.
    """

    unit: Unit = "record"
    relation: Relation = "add_remove"
    epsilon: float
    delta: float
    accountant: Accountant = "pld"
    other_epsilon: float | None = None
    budget_epsilon: float | None = None
    sampling: Sampling
    queries: tuple[GaussianQuery, ...]
    bands: int = 1
    before: tuple[StepRelease, ...] = ()
    noise_source: str
    seeded: bool = False
    isolation: Isolation = "vmap"
    company: Company = "none"
    recorded: bool = False
    audited: str = ""
    steps_done: int
    steps_planned: int
    public_constants: Mapping[str, float | int | str] = field(default_factory=dict)
    records: int
    records_public: bool
    records_noisy: bool = False
    given: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    covered: tuple[str, ...] = COVERED
    not_covered: tuple[str, ...] = NOT_COVERED
    warnings: tuple[str, ...] = ()
    no_guarantee_reason: str | None = None

    def __post_init__(self) -> None:
        if math.isinf(self.epsilon) != (self.no_guarantee_reason is not None):
            raise ValueError(
                f"epsilon is {self.epsilon} and the reason for no guarantee is "
                f"{self.no_guarantee_reason!r}; an infinite epsilon, and only that, needs a reason"
            )

    @classmethod
    def for_run(
        cls,
        plan: Plan,
        *,
        steps_done: int,
        noise_source: str,
        seeded: bool = False,
        isolation: Isolation = "vmap",
        company: Company = "none",
        recorded: bool = False,
        audited: str = "",
        unit: Unit = "record",
        bands: int = 1,
        releases: Iterable[tuple[StepRelease, int]] | None = None,
        public_constants: Mapping[str, float | int | str] | None = None,
        records_noisy: bool = False,
        given: Iterable[str] = (),
        stated: Iterable[str] = (),
        not_covered: Iterable[str] = (),
        warnings: Iterable[str] = (),
    ) -> "Statement":
        """The statement of a run that follows `plan`.

        Args:
            plan: the run's plan.
            steps_done: the steps charged so far.
            noise_source: a sentence about the randomness.
            seeded: whether the randomness comes from a seed.
            isolation: how records were kept apart.
            company: what a record went through the model with.
            recorded: whether captures were recorded and repeated.
            audited: what was found when neighbouring batches were compared.
            unit: the unit of privacy.
            bands: over how many steps noise is correlated.
            releases: what was charged, if not the plan's releases in `steps_done` steps.
            public_constants: further ones, such as clipping bounds.
            records_noisy: whether the number of units was released with noise.
            given: what was taken from the data as they are.
            stated: what was stated about the data.
            not_covered: further items.
            warnings: further sentences.
        """
        charged = list(releases) if releases is not None else plan.releases(steps_done)
        other: Accountant = "rdp" if plan.accountant == "pld" else "pld"
        spent, spent_otherwise = (
            accounting.epsilon(charged, delta=plan.delta, accountant=who, relation=plan.relation)
            for who in (plan.accountant, other)
        )
        reasons = [release.no_guarantee_reason for release, count in charged if count]
        return cls(
            unit=unit,
            relation=plan.relation,
            epsilon=spent,
            delta=plan.delta,
            accountant=plan.accountant,
            other_epsilon=spent_otherwise,
            budget_epsilon=plan.budget.epsilon,
            sampling=plan.release.sampling,
            queries=plan.release.queries,
            bands=bands,
            before=plan.before,
            noise_source=noise_source,
            seeded=seeded,
            isolation=isolation,
            company=company,
            recorded=recorded,
            audited=audited,
            steps_done=steps_done,
            steps_planned=plan.steps,
            public_constants={
                "sampling rate": plan.sampling_rate,
                "expected batch size": plan.expected_batch_size,
                "steps": plan.steps,
                "noise multiplier": plan.noise_multiplier,
                **(public_constants or {}),
            },
            records=plan.records,
            records_public=plan.records_public and not records_noisy,
            records_noisy=records_noisy,
            given=tuple(given),
            stated=tuple(stated),
            not_covered=(*not_covered, *_not_covered(plan.before)),  # what is known comes first
            warnings=(*plan.warnings, *warnings),
            no_guarantee_reason=next((reason for reason in reasons if reason is not None), None),
        )

    def text(self, width: int = 88) -> str:
        """The statement as prose, wrapped at `width` characters."""
        paragraphs = [
            self._headline(),
            self._meaning(),
            self._procedure(),
            f"Where the randomness comes from. {self.noise_source}",
            self._accounting(),
            self._public(),
        ]
        known = self.assumptions
        lists = (
            ("This holds by construction:", known.by_construction if known else ()),
            ("This is tested:", known.tested if known else ()),
            ("This is trusted:", known.trusted if known else ()),
            ("What is covered:", self._really_covered()),
            ("What is not covered:", self.not_covered),
            ("Please note:", self._all_warnings()),
        )
        blocks = [textwrap.fill(paragraph, width) for paragraph in paragraphs if paragraph]
        for title, items in lists:
            if items:
                bullets = (
                    textwrap.fill(item, width, initial_indent="- ", subsequent_indent="  ")
                    for item in items
                )
                blocks.append("\n".join((title, *bullets)))
        return "\n\n".join(blocks) + "\n"

    def __str__(self) -> str:
        return self.text()

    def json(self) -> str:
        """The same facts as JSON; an infinite epsilon is the string "inf"."""
        facts: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        release = StepRelease(
            sampling=self.sampling, queries=self.queries, unbounded_reason=self.no_guarantee_reason
        ).to_dict()
        facts |= {"sampling": release["sampling"], "queries": release["queries"]}
        facts |= {"before": [release.to_dict() for release in self.before]}
        facts |= {"public_constants": dict(self.public_constants)}
        facts |= {"covered": self._really_covered(), "warnings": self._all_warnings()}
        facts |= {"guarantee": math.isfinite(self.epsilon), "assumptions": self.assumptions}
        return json.dumps(to_json(facts), indent=2, ensure_ascii=False, allow_nan=False)

    @property
    def assumptions(self) -> Assumptions | None:
        """What the guarantee rests on; None where there is none."""
        if math.isinf(self.epsilon):
            return None
        return assumptions(
            unit=self.unit,
            isolation=self.isolation,
            company=self.company,
            recorded=self.recorded,
            seeded=self.seeded,
            audited=self.audited,
        )

    @property
    def _nothing_yet(self) -> bool:
        return self.steps_done == 0 and not self.before

    def _headline(self) -> str:
        reason = self.no_guarantee_reason
        if reason is not None:
            return (
                "This training run gives no differential privacy guarantee (its epsilon is "
                f"infinite), because {reason.rstrip('.')}. Treat the model as if it contained the "
                f"data of every {self.unit}."
            )
        if self._nothing_yet:
            return (
                "No step has been taken yet, so nothing about the data has been released: epsilon "
                f"is 0. The plan is for {_counted(self.steps_planned, 'step')}."
            )
        whom = f"every single {self.unit} in its data"
        if self.unit == "user":
            whom += ", with all of that user's records"
        against = ", but only from people who do not know its seed" if self.seeded else ""
        change = (
            f"one {self.unit} being added to or removed from the data"
            if self.relation == "add_remove"
            else f"one {self.unit} in the data being exchanged for another"
        )
        return (
            f"This training run protects {whom}{against}: it is differentially private with "
            f"epsilon = {rounded_up(self.epsilon)} and delta = {_plain(self.delta)} (about one "
            f"in {round(1 / self.delta):,}). The protected difference is {change}."
            + (f" {GIVEN}" if self.given else "")
        )

    def _meaning(self) -> str:
        if math.isinf(self.epsilon) or self._nothing_yet:
            return ""
        question = (
            f"whether one particular {self.unit} is in the data"
            if self.relation == "add_remove"
            else f"which of two known {self.unit}s is in the data"
        )
        factor = rounded_up(_odds(self.epsilon)) if self.epsilon < 14 else "some millions of"
        often = how_often_right(self.epsilon, self.delta)
        return (
            f"What this means. Suppose someone sees everything that is covered below and wants to "
            f"know {question}, whatever else they know already. What they see is at most {factor} "
            "times as likely under one answer as under the other (this factor is e raised to the "
            "power epsilon), apart from events that together have a probability of at most delta. "
            "Put as a game: where a blind guess is right half of the time, they are right "
            f"{often}. This is a limit that no attack can pass, not a prediction, if what is "
            "trusted below holds; a smaller epsilon protects more."
        )

    def _procedure(self) -> str:
        if isinstance(self.sampling, CyclicSampling):
            drawn = self._drawn_in_parts(self.sampling)
        elif isinstance(self.sampling, PoissonSampling) and self.sampling.rate < 1:
            drawn = (
                f"every {self.unit} is drawn with probability {self.sampling.rate:.6g}, "
                "independently of all others (this is called Poisson sampling)"
            )
        else:
            drawn = f"every {self.unit} takes part"
        bound = (
            ""
            if math.isinf(self.epsilon)
            else f" What a single {self.unit} can contribute to an answer is limited to a known "
            "bound, and random Gaussian noise is added before the answer is used."
        )
        asked = _asked(self.queries)
        earlier = "; ".join(_asked(release.queries) for release in self.before)
        if earlier:
            earlier = (
                "Before training, these questions were asked about the data, and epsilon and delta "
                f"count them too: {earlier}. "
            )
        return (
            f"How training works. {earlier}It takes {_counted(self.steps_planned, 'step')}, of "
            f"which {self.steps_done:,} {'is' if self.steps_done == 1 else 'are'} done. In each "
            f"step {drawn}.{bound}{self._correlation()} Asked in each step: "
            f"{asked or 'nothing that is recorded'}."
        )

    def _drawn_in_parts(self, sampling: CyclicSampling) -> str:
        often = StepRelease(sampling=sampling, queries=self.queries).participations(
            self.steps_planned
        )
        taken = "takes part"
        if sampling.rate < 1:
            taken = f"is drawn with probability {sampling.rate:.6g}, independently of all others"
        return (
            f"one of {sampling.parts} parts of the {self.unit}s has its turn, and every "
            f"{self.unit} of that part {taken}. Each {self.unit} drew its part by itself, once, "
            f"whatever its data are. So it can take part in at most {often:,} of the steps, and "
            "that is what epsilon counts (this is called cyclic Poisson sampling)"
        )

    def _correlation(self) -> str:
        if self.bands == 1 or math.isinf(self.epsilon):
            return ""
        return (
            f" The noise of the gradient is correlated over {self.bands} steps, so that a part of "
            f"it cancels in the weights: no {self.unit} takes part twice within them. What it is "
            "made from is kept in memory only; after an interruption the correlation begins anew, "
            "which costs nothing."
        )

    def _accounting(self) -> str:
        if math.isinf(self.epsilon) or self._nothing_yet:
            return ""
        sentences = [
            f"How epsilon was computed. By {_ACCOUNTANTS[self.accountant]}, over all steps "
            "together; every approximation errs towards a larger value, so the true cost is not "
            "above the epsilon given."
        ]
        aside = sum(release.delta for release in self.before)
        if aside:
            sentences.append(
                f"Of delta, {_plain(float(f'{aside:.2g}'))} is set aside for the case that a "
                "category is shown which a single record alone has."
            )
        if self.budget_epsilon is not None:
            sentences.append(f"The budget of the whole run is epsilon = {self.budget_epsilon:g}.")
        if self.other_epsilon is not None:
            other = _ACCOUNTANTS["rdp" if self.accountant == "pld" else "pld"]
            value = rounded_up(self.other_epsilon, infinite="no bound")
            sentences.append(
                f"For comparison, {other}, another valid method, gives {value} for the same steps."
            )
        return " ".join(sentences)

    def _public(self) -> str:
        constants = "; ".join(
            f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.public_constants.items()
        )
        size = f"The number of {self.unit}s, {self.records:,}, "
        if self.records_noisy:
            size += "was released with noise, as one of the answers above; the exact one is hidden."
        elif self.records_public:
            size += "was stated to be public knowledge."
        else:
            size += (
                "was taken from the data itself and is treated as public: the guarantee does not "
                "hide it. If it is a secret, state a public number of records in the budget."
            )
        if self.stated:
            size += f" Stated without looking at the data: {'; '.join(self.stated)}."
        settings = f" The settings are taken to be public too: {constants}." if constants else ""
        return f"What is taken to be public. {size}{settings}"

    def _really_covered(self) -> tuple[str, ...]:
        if math.isinf(self.epsilon):
            return ()
        return (*self.covered, *([_ANSWERED] if self.before else []))

    def _all_warnings(self) -> tuple[str, ...]:
        found = list(self.warnings)
        if _WEAK_EPSILON < self.epsilon < math.inf:
            found.append(
                f"Epsilon is above {_WEAK_EPSILON:g}: taken by itself, the guarantee is weak. It "
                "may still help in practice, but it should not be the only protection."
            )
        if self.seeded and not self._nothing_yet:
            found.append(
                "The run used a seed, for repeatability. Anyone who knows or guesses the seed can "
                "remove the noise, and so can anyone who sees another run with this seed and these "
                "settings that began elsewhere; do not publish a model trained this way as private."
            )
        return tuple(found)


def _not_covered(before: Iterable[StepRelease]) -> tuple[str, ...]:
    named = "before training and not named above," if any(before) else "before training,"
    return tuple(item.replace("before training,", named) for item in NOT_COVERED)


def _asked(queries: Iterable[GaussianQuery]) -> str:
    return "; ".join(
        f"{_QUESTIONS.get(query.name, query.name)}, with "
        + (
            f"noise of standard deviation {_down(query.noise_multiplier)} times the bound"
            if query.noise_multiplier
            else "no noise"
        )
        for query in queries
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _down(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{math.floor(value * 10**digits) / 10**digits:g}"


def _plain(value: float) -> str:
    """A small number written without an exponent."""
    return f"{Decimal(repr(value)):f}"
