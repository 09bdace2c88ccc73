r"""The schema of a table, found privately: kinds, ranges, categories, the number of rows.

Two questions about the training rows, answered with Gaussian noise, as one release:

1. which columns hold numbers: for each of the c columns of which that is not known, how many more
   cells are numbers than words (sensitivity sqrt c, and four times the noise: a majority is plain);
2. all counts of ``data.table_counts`` for the columns that are not declared, k of them categorical
   and m numeric, and the number of rows (sensitivity sqrt(k + m + 1); without the 1 if that number
   is declared).

Kept are the categories whose noisy count passes 1 + std * Phi^-1(1 - delta' / k), sorted by name. A
category that one record alone has passes with a probability of at most delta' / k; the k of them
together cost delta' / (1 - delta') of delta. The range of a numeric column goes from the first to
the last bin that noise alone would hardly reach, and the fill is the middle of the bin that has the
median.

Guarantee: ``Found.release``, for one record added or removed; proof in docs/proofs.md. The noise is
that of ``mechanism.noise``. What is done with the answers, messages included, needs no more care.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import special
from torch import Tensor

from plumbline.data.files import TableError
from plumbline.data.table_counts import BINS, EDGES, ZERO, ColumnCounts, Counts, ends_of
from plumbline.data.table_schema import CATEGORY, NUMBER, Column, Kind, Schema
from plumbline.data.tables import TablePlan
from plumbline.mechanism.accountant import Accountant
from plumbline.mechanism.calibration import calibrate_noise
from plumbline.mechanism.ledger import Ledger
from plumbline.mechanism.noise import add_noise, gaussian, rounding_sensitivity
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
_SPURIOUS = 1e-3  # how likely a column's range has an end that only noise has made
_SURE = 3.0  # standard deviations by which a majority of numbers, or of words, must be plain


@dataclass(frozen=True)
class SchemaQuestion:
    """What is asked of a table; nothing in it depends on a row.

    Attributes:
        unknown: The columns of which not even the kind is known.
        asked: All columns that are not declared.
        records: Whether the number of rows is asked too.
        release: What the answers cost.
        failing: delta', the probability that a category shows which one record alone has.
    """

    unknown: tuple[str, ...]
    asked: tuple[str, ...]
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
        failing = DELTA_SHARE * delta if kinds - {NUMBER} else 0.0
        most = math.sqrt(len(asked) + records)

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
        return cls(unknown, asked, records, release_at(noise), failing)

    @property
    def std(self) -> float:
        """The standard deviation of the noise of every count."""
        query = self.release.queries[-1]
        return _std(query, len(self.asked) + 1)

    def threshold(self, categorical: int) -> float:
        """What a category's noisy count must pass, with so many categorical columns asked about."""
        return threshold(self.std, self.failing, categorical)


def threshold(std: float, failing: float, categorical: int) -> float:
    """1 + std * Phi^-1(1 - failing / categorical), never rounded down."""
    beyond = -float(special.ndtri(failing / categorical))
    return math.nextafter(1 + std * beyond * (1 + 1e-12), math.inf)


def _about_counts(asked: tuple[str, ...], records: bool) -> str:
    parts = ["the number of records"] if records else []
    if asked:
        parts.append(
            f"the numbers of records by category or range of values, in {len(asked)} columns of "
            "the table"
        )
    return " and ".join(parts)


@dataclass(frozen=True)
class Found:
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
) -> Found:
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
        elif held == NUMBER:
            found[name] = noisy.range(name, column, plan.schema[name].fill)
    schema = plan.schema.with_columns(found)
    if question.records:
        rows = max(1, round(noisy.rows(counts.rows) / plan.training_share))
        schema = Schema(schema.columns, rows)
    return Found(schema, question.asked, question.release, run)


class _Noisy:
    """Answers with noise. Every count has noise of its own, which no other count's depends on."""

    def __init__(self, source: RandomSource, question: SchemaQuestion) -> None:
        self._source, self._question = source, question

    def rows(self, exact: int) -> float:
        """The number of rows."""
        return float(self._with_noise(torch.tensor([float(exact)]), "rows"))

    def kind(self, name: str, column: ColumnCounts) -> Kind | None:
        """Whether a column holds numbers or categories; None where the noise leaves it open."""
        std = _std(self._question.release.queries[0], len(self._question.unknown))
        exact = torch.tensor([float(column.numbers - column.words)])
        more = float(self._with_noise(exact, "kind", name, std=std))
        if abs(more) < _SURE * std:
            return None
        return NUMBER if more > 0 else CATEGORY

    def categories(self, name: str, column: ColumnCounts, categorical: int) -> Column:
        """The categories that pass, by name."""
        limit = self._question.threshold(categorical)
        kept = [
            value
            for value, times in sorted(column.categories.items())
            if float(self._with_noise(torch.tensor([float(times)]), "category", name, value))
            > limit
        ]
        return Column(CATEGORY, categories=tuple(kept))

    def range(self, name: str, column: ColumnCounts, fill: float | None) -> Column:
        """The range over the bins that pass, and the middle of the one with the median."""
        noisy = self._with_noise(column.bins, "bins", name)
        limit = -float(special.ndtri(_SPURIOUS / BINS)) * self._question.std
        passing = torch.nonzero(noisy > limit).flatten().tolist()
        if not passing:
            return Column(NUMBER)
        low, high = ends_of(passing[0])[0], ends_of(passing[-1])[1]
        if low == high:  # zeros: of other numbers, the sign is left
            low, high = float(EDGES[ZERO]), float(EDGES[ZERO + 1])
        kept = torch.where(noisy > limit, noisy, 0.0).cumsum(0)
        middle = int(torch.searchsorted(kept, kept[-1:] / 2))
        return Column(NUMBER, (low, high), sum(ends_of(middle)) / 2 if fill is None else fill)

    def _with_noise(self, exact: Tensor, *what: str, std: float | None = None) -> Tensor:
        # By name, and not by place: one category more does not shift the noise of the others.
        position = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:7], "big")
        noise = gaussian(self._source.once("schema", position), len(exact))
        value = {"": exact.double()}
        return add_noise(value, self._question.std if std is None else std, noise)[""]


def _std(query: GaussianQuery, entries: int) -> float:
    """The noise of a query of which one record moves so many entries, rounding included."""
    std = query.noise_multiplier * query.sensitivity
    return query.noise_multiplier * (query.sensitivity + rounding_sensitivity(std, entries))


def check_found(
    plan: TablePlan, question: SchemaQuestion, schema: Schema, empty: Sequence[str] = ()
) -> None:
    """Refuses a schema in which something is missing that a run needs, and says what to declare.

    Args:
        plan: The table.
        question: What was asked.
        schema: What was declared and found.
        empty: Columns of which no category was found: those that are only learned from are left
            out.

    Raises:
        TableError: If no range was found, or fewer than two classes.
    """
    advice: list[str] = []
    for name in plan.used:
        column = schema[name]
        values = len(column.categories or ())
        if (name == plan.target and values < 2) or (name in plan.sensitive and not values):
            advice.append(f"--categories {name}=A,B")
        elif column.kind == NUMBER and column.range is None:
            advice.append(f"--range {name}=LOW:HIGH")
        elif column.kind is None and name not in empty:
            advice.append(f"--range {name}=LOW:HIGH (or --categories {name}=A,B)")
    if len(empty) == len(plan.features):
        advice += [f"--categories {name}=A,B" for name in empty if name not in plan.sensitive]
    if advice:
        shows = ""
        if question.failing:
            categorical = sum(schema[name].kind != NUMBER for name in question.asked)
            rows = float(f"{question.threshold(max(1, categorical)):.2g}")
            shows = f": a value shows if some {rows:,.0f} training rows have it"
        raise TableError(
            f"Too little of {plan.source.title} was found privately for a twentieth of epsilon, "
            f"which is spent{shows}. Declare what you know: add {' '.join(advice)} to the command, "
            "with the table's own values, or a schema (`plumbline data schema` writes one). Or "
            "give more epsilon, or take it from the rows as they are (--from-data), which epsilon "
            "does not cover."
        )
