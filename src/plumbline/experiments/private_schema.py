r"""The schema of a table, found privately: kinds, ranges, categories, the number of rows.

Two questions about the training rows, answered with Gaussian noise, as one release:

1. which columns hold numbers: for each of the c columns of which that is not known, how many more
   cells are numbers than words (sensitivity sqrt c, and four times the noise: a majority is plain);
2. all counts of ``data.table_counts`` for the columns that are not declared, k of them categorical
   and m of numbers or dates, and the number of rows unless that is declared. Each column's counts
   are multiplied by a public weight w: sensitivity sqrt(sum of w^2), and the noise of a count is
   that of the question divided by w. The target weighs as much as all the others together, since
   no run can do without its classes; the others weigh 1 (sqrt(k + m + 1), were all weights equal).

Kept are the categories whose noisy count passes 1 + std * Phi^-1(1 - delta' / k), by name. A
category that one record alone has passes with a probability of at most delta' / k; the k of them
together cost delta' / (1 - delta') of delta. The range of a numeric column goes over the bins that
seem to hold numbers (``noisy_ranges``). A missing cell is filled by the middle of the bin that has
the median, or the category with the largest of these noisy counts.

Guarantee: ``FoundSchema.release``, for one record added or removed; proof in docs/proofs.md. The
noise is that of ``mechanism.noise``. What is done with the answers, messages included, needs no
more care.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from scipy import special
from torch import Tensor

from plumbline.data.table_counts import NUMBERS, ColumnCounts, Counts
from plumbline.data.table_plan import TablePlan
from plumbline.data.table_schema import CATEGORY, MEASURED, NUMBER, Column, Kind, Schema
from plumbline.data.table_target import in_class_order
from plumbline.experiments.noisy_ranges import deviations, held_bins
from plumbline.mechanism.accountant import Accountant
from plumbline.mechanism.calibration import calibrate_noise
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.noise import add_noise, rounding_sensitivity
from plumbline.mechanism.random_source import RandomSource
from plumbline.mechanism.release import FullBatch, GaussianQuery, StepRelease
from plumbline.training.full_batch_queries import charged, name_of

SCHEMA_RUN = "schema"
"""How the name of such a release in a ledger begins."""
EPSILON_SHARE = 0.05
"""Of epsilon, what the schema costs by itself."""
DELTA_SHARE = 0.1
"""Of delta, what pays for categories that one record alone has."""
_KINDS_NOISE = 4.0  # times that of the counts
SURE = 3.0
"""Standard deviations by which a majority of numbers, or of words, must be plain."""


@dataclass(frozen=True)
class SchemaQuestion:
    """What is asked of a table; nothing in it depends on a row.

    Attributes:
        unknown: The columns of which not even the kind is known.
        weights: All columns that are not declared, with how much each weighs.
        records: Whether the number of rows is asked too; it weighs 1.
        release: What the answers cost.
        failing: delta', the probability that a category shows which one record alone has.
    """

    unknown: tuple[str, ...]
    weights: Mapping[str, float]
    records: bool
    release: StepRelease
    failing: float

    @classmethod
    def about(
        cls,
        plan: TablePlan,
        *,
        epsilon: float,
        delta: float,
        accountant: Accountant = "pld",
        seeded: bool = False,
    ) -> SchemaQuestion | None:
        """What must be asked, with noise for a share of a run's epsilon; None if nothing must.

        Args:
            plan: The table.
            epsilon: Of the whole run.
            delta: Of the whole run.
            accountant: Who computes epsilon.
            seeded: Whether the noise comes from a seed.
        """
        asked = tuple(plan.undeclared)
        unknown = tuple(name for name in asked if plan.schema[name].kind is None)
        records = plan.schema.records is None
        if not asked and not records:
            return None
        # Without a column that may be categorical, no name of a category can show.
        kinds = {plan.schema[name].kind for name in asked}
        failing = DELTA_SHARE * delta if kinds - {*MEASURED} else 0.0
        weights = dict.fromkeys(asked, 1.0)
        if plan.target in weights:
            weights[plan.target] = math.sqrt(max(1, len(asked) - 1 + records))
        most = math.hypot(*weights.values(), records)

        def release_at(noise: float) -> StepRelease:
            queries = [(_about_counts(asked, records), most, noise)]
            if unknown:
                words = f"which of {len(unknown)} columns of the table hold numbers"
                queries.insert(0, (words, math.sqrt(len(unknown)), _KINDS_NOISE * noise))
            return StepRelease(
                sampling=FullBatch(),
                queries=tuple(
                    GaussianQuery(
                        name=name_of(name, seeded=seeded), sensitivity=most, noise_multiplier=sigma
                    )
                    for name, most, sigma in queries
                ),
                delta=failing / (1 - failing),
            )

        noise = calibrate_noise(
            release_at, steps=1, epsilon=EPSILON_SHARE * epsilon, delta=delta, accountant=accountant
        )
        return cls(unknown, weights, records, release_at(noise), failing)

    @property
    def asked(self) -> tuple[str, ...]:
        """All columns that are not declared."""
        return tuple(self.weights)

    def std(self, column: str | None = None) -> float:
        """The standard deviation of the noise of a column's counts, or of the number of rows."""
        weight = 1.0 if column is None else self.weights[column]
        return _std(self.release.queries[-1], len(self.weights) + 1) / weight

    @property
    def kind_std(self) -> float:
        """The standard deviation of the noise of the question what a column holds."""
        return _std(self.release.queries[0], len(self.unknown))

    def passing(self, column: str) -> float:
        """What the noisy count of a bin must pass, so that noise alone hardly makes a range."""
        return deviations(len(NUMBERS)) * self.std(column)

    def threshold(self, column: str, categorical: int) -> float:
        """What a category's noisy count must pass, with so many categorical columns asked about.

        1 + std * Phi^-1(1 - failing / categorical), never rounded down.
        """
        beyond = -float(special.ndtri(self.failing / categorical))
        return math.nextafter(1 + self.std(column) * beyond * (1 + 1e-12), math.inf)


def _about_counts(asked: tuple[str, ...], records: bool) -> str:
    parts = ["the number of records"] if records else []
    if asked:
        parts.append(
            f"the numbers of records by category or range of values, in {len(asked)} columns of "
            "the table"
        )
    return " and ".join(parts)


@dataclass(frozen=True)
class FoundSchema:
    """What was found.

    Attributes:
        schema: The declared schema, with what was found.
        columns: Those that were asked about.
        release: What it cost.
        run: Its name in the ledger.
    """

    schema: Schema
    columns: tuple[str, ...]
    release: StepRelease
    run: str


def find_schema(
    plan: TablePlan,
    counts: Counts,
    question: SchemaQuestion,
    *,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> FoundSchema:
    """Charges the question, durably, and then answers it.

    Args:
        plan: The table.
        counts: Of its training rows: ``plan.counts()``.
        question: What is asked: ``SchemaQuestion.about(plan, ...)``.
        seed: Makes the noise reproducible, for who knows the seed; by default it is secure.
        ledger: Where the release is charged before it is made.

    Raises:
        LedgerError: If the release could not be charged; nothing was released then.
    """
    exact = [
        (name, column.numbers, sorted(column.categories.items()), column.bins)
        for name, column in counts.columns.items()
    ]
    kind = f"{SCHEMA_RUN} {sorted(plan.used)} {plan.target}"
    source, run = charged(kind, question.release, [counts.rows, exact], seed=seed, ledger=ledger)
    noisy = _Noisy(source, question)
    kinds: dict[str, Kind | None] = {n: plan.schema[n].kind for n in question.asked}
    kinds |= {name: noisy.kind(name, counts.columns[name]) for name in question.unknown}
    categorical = list(kinds.values()).count(CATEGORY)
    found = {}
    for name in question.asked:
        column, held = counts.columns[name], kinds[name]
        if held == CATEGORY:
            found[name] = noisy.categories(name, column, categorical)
        elif held is not None:
            found[name] = noisy.range(name, column)
    if plan.target in found:  # whose rows are left out where it is missing
        found[plan.target] = replace(found[plan.target], fill=None)
    schema = plan.schema.with_columns(found)
    if question.records:
        rows = max(1, round(noisy.rows(counts.rows) / plan.training_share))
        schema = Schema(schema.columns, rows)
    return FoundSchema(schema, question.asked, question.release, run)


class _Noisy:
    """Answers with noise. Every count has noise of its own, which no other count's depends on."""

    def __init__(self, source: RandomSource, question: SchemaQuestion) -> None:
        self._source, self._question = source, question

    def rows(self, exact: int) -> float:
        """The number of rows."""
        return float(self._with_noise(_exactly(exact), self._question.std(), "rows"))

    def kind(self, name: str, column: ColumnCounts) -> Kind | None:
        """Whether a column holds numbers or categories; None where the noise leaves it open."""
        std = self._question.kind_std
        exact = column.numbers - column.words
        more = float(self._with_noise(_exactly(exact), std, "kind", name))
        if abs(more) < SURE * std:
            return None
        return NUMBER if more > 0 else CATEGORY

    def categories(self, name: str, column: ColumnCounts, categorical: int) -> Column:
        """The categories that pass, by name, and the one of them that most cells seem to have."""
        limit, std = self._question.threshold(name, categorical), self._question.std(name)
        noisy = {
            value: float(self._with_noise(_exactly(times), std, "category", name, value))
            for value, times in sorted(column.categories.items())
        }
        kept = {value: times for value, times in noisy.items() if times > limit}
        fill = column.column.fill or max(kept, key=kept.__getitem__, default=None)
        known = replace(column.column, kind=CATEGORY, categories=in_class_order(kept))
        return replace(known, fill=fill if fill in kept else None)

    def range(self, name: str, column: ColumnCounts) -> Column:
        """The range over the bins that pass, and the middle of the one with the median."""
        std = self._question.std(name)
        noisy = self._with_noise(column.bins, std, "bins", name)
        scale, known = column.scale, column.column
        known = replace(known, kind=known.kind or NUMBER)
        held = held_bins(noisy, std)
        if not held.any():
            return known
        first, last = held.nonzero().flatten()[[0, -1]].tolist()
        low, high = scale.ends(first)[0], scale.ends(last)[1]
        if low == high:  # zeros: of other numbers, the sign is left
            low, high = (float(scale.edges[first + side]) for side in (0, 1))
        kept = torch.where(held, noisy, 0.0).clamp(min=0.0).cumsum(0)
        middle = int(torch.searchsorted(kept, kept[-1:] / 2))
        fill = sum(scale.ends(middle)) / 2 if known.fill is None else known.fill
        return replace(known, range=(low, high), fill=fill)

    def _with_noise(self, exact: Tensor, std: float, *what: str) -> Tensor:
        # By name, and not by place: one category more does not shift the noise of the others.
        position = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:7], "big")
        noise = self._source.once("schema", position)
        return add_noise({"": exact}, std, noise)[""]


def _exactly(count: int) -> Tensor:
    """A count, ``[1]``; in float32, one row more than 2^24 would move it by two."""
    return torch.tensor([count], dtype=torch.float64)


def _std(query: GaussianQuery, entries: int) -> float:
    """The noise of a query of which one record moves so many entries, rounding included."""
    std = query.noise_multiplier * query.sensitivity
    return query.noise_multiplier * (query.sensitivity + rounding_sensitivity(std, entries))
