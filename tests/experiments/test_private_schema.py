"""A table's schema, found privately: sensitivity, threshold, cost, and what one row changes."""

import itertools
import math
import random
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from scipy import stats

from plumbline.data.table_counts import NUMBERS, YEARS, ColumnCounts, Counts
from plumbline.data.table_dates import days_of
from plumbline.data.table_plan import TablePlan, plan_table
from plumbline.data.table_schema import Schema
from plumbline.data.tables import table
from plumbline.experiments import private_schema
from plumbline.experiments.private_schema import (
    DELTA_SHARE,
    EPSILON_SHARE,
    FoundSchema,
    SchemaQuestion,
    find_schema,
)
from plumbline.mechanism.accountant import epsilon
from plumbline.mechanism.ledger import Ledger, LedgerError
from plumbline.mechanism.random_source import SeededSource

HEADER = "age,city,sex,stay,income"
DELTA = 1e-6


def rows(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [
        f"{draw.randint(18, 89)},{draw.choice(['Rome', 'Oslo', 'Lima'])},{draw.choice('fm')},"
        f"{draw.expovariate(0.2):.1f},{draw.choice(['low', 'low', 'high'])}"
        for _ in range(count)
    ]


def planned(folder: Path, lines: list[str], **options: Any) -> TablePlan:
    path = folder / "people.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return plan_table(path, **{"target": "income", "sensitive": "sex", **options})


def found(plan: TablePlan, spent: float = 8.0, **more: Any) -> FoundSchema:
    question = SchemaQuestion.about(plan, epsilon=spent, delta=DELTA)
    assert question is not None
    return find_schema(plan, plan.counts(), question, **more)


def as_vector(
    counts: Counts, question: SchemaQuestion, every: dict[str, list[str]]
) -> torch.Tensor:
    """All counts of the second question, each in units of the noise that it gets.

    They are those of categories and bins that two tables have together.
    """
    parts = [torch.tensor([float(counts.rows)]).double() / question.std()]
    for name, column in counts.columns.items():
        part = torch.tensor([float(column.categories[value]) for value in every[name]])
        part = column.bins if name in ("age", "stay") else part
        parts.append(part.double() / question.std(name))
    return torch.cat(parts)


@pytest.mark.parametrize(
    "extra", ["30,Oslo,f,1.0,low", "999999999999999,Cairo,x,-5,new", "0,Lima,m,1e-9,high"]
)
def test_one_row_moves_the_counts_by_the_sensitivity_at_most(tmp_path: Path, extra: str) -> None:
    lines = rows(60)
    # A row at the end keeps the others' places; one that is held out moves nothing at all.
    places = [len(lines) + k for k in range(12)]
    moves = set()
    for place in places:
        filled = lines + rows(place - len(lines), seed=1)
        counts = [
            (plan := planned(tmp_path, content)).counts() for content in (filled, [*filled, extra])
        ]
        every = {
            name: sorted({*counts[0].columns[name].categories, *counts[1].columns[name].categories})
            for name in counts[0].columns
        }
        question = SchemaQuestion.about(plan, epsilon=1, delta=DELTA)
        assert question is not None
        one, other = (as_vector(each, question, every) for each in counts)
        asked = question.release.queries[-1]
        # city, sex, age, stay and the number of rows weigh 1 each, and income as much as they do.
        assert asked.sensitivity == pytest.approx(math.sqrt(5 + 5), rel=1e-15)
        # In units of the noise a Gaussian mechanism may move by 1 / sigma.
        moves.add(float((one - other).norm() * asked.noise_multiplier))
    assert max(moves) <= 1.0
    # It is reached, but for the rounding that the noise covers, by a row that is trained on.
    assert {round(move, 8) for move in moves} == {0.0, 1.0}


def test_one_row_moves_large_counts_by_one(tmp_path: Path) -> None:
    """Under the same noise; float32 has no odd numbers beyond 2^24."""
    question = SchemaQuestion.about(planned(tmp_path, rows(20)), epsilon=3, delta=DELTA)
    assert question is not None
    many = 2**24 + 1
    noisy = [private_schema._Noisy(SeededSource(0), question).rows(many + k) for k in range(3)]
    assert [b - a for a, b in itertools.pairwise(noisy)] == pytest.approx([1, 1], abs=1e-6)
    assert question.threshold("city", 1) < 2**20
    fills = []
    for more in range(3):  # which of two categories has one row more than the other
        column = ColumnCounts()
        column.categories.update({"a": many + more, "b": many + 1})
        drawn = private_schema._Noisy(_Still(), question)
        fills.append(drawn.categories("city", column, 1).fill)
    assert fills == ["b", "a", "a"]  # the first of equal ones


class _Still(SeededSource):
    """Noise that is the same for every count."""

    def __init__(self) -> None:
        super().__init__(0)

    def once(self, *name: Any) -> Any:
        return self.stream("same")


def test_the_noise_of_a_count_is_that_of_its_column(tmp_path: Path) -> None:
    """Measured over seeds: the target's is sqrt(5) times smaller than the others'."""
    question = SchemaQuestion.about(planned(tmp_path, rows(20)), epsilon=3, delta=DELTA)
    assert question is not None
    asked, draws = question.release.queries[-1], 2000
    sizes: dict[str, list[float]] = {name: [] for name in ("rows", "income", "city", "age")}
    column = ColumnCounts()
    for seed in range(draws // len(column.bins) + 1):
        noisy = private_schema._Noisy(SeededSource(seed), question)
        for name in ("income", "city", "age"):
            bins = noisy._with_noise(column.bins, question.std(name), "bins", name)
            sizes[name] += bins.tolist()
    sizes["rows"] = [
        private_schema._Noisy(SeededSource(seed), question).rows(0) for seed in range(draws)
    ]
    for name, drawn in sizes.items():
        weight = math.sqrt(5) if name == "income" else 1.0
        expected = asked.noise_multiplier * asked.sensitivity / weight
        assert stats.tstd(drawn) == pytest.approx(expected, rel=0.1)  # six standard errors


def test_the_kinds_move_by_one_for_each_column(tmp_path: Path) -> None:
    plan = planned(tmp_path, rows(20))
    question = SchemaQuestion.about(plan, epsilon=1, delta=DELTA)
    assert question is not None
    assert question.unknown == ("age", "city", "stay")
    assert question.release.queries[0].sensitivity == math.sqrt(3)
    known = planned(tmp_path, rows(20), ranges={"age": (0, 99), "stay": (0, 9)}, records=20)
    question = SchemaQuestion.about(known, epsilon=1, delta=DELTA)
    assert question is not None
    assert question.asked == ("city", "sex", "income")
    assert question.release.queries[-1].sensitivity == math.sqrt(2 + 2)  # and not the number
    given = {"city": ["Oslo"], "sex": ["f", "m"], "income": ["low", "high"]}
    ranges = {"age": (0, 99), "stay": (0, 9)}
    whole = planned(tmp_path, rows(20), ranges=ranges, categories=given)
    question = SchemaQuestion.about(whole, epsilon=1, delta=DELTA)
    assert question is not None
    assert question.release.delta == 0  # no category can show
    assert [query.sensitivity for query in question.release.queries] == [1.0]
    all_known = planned(tmp_path, rows(20), ranges=ranges, categories=given, records=20)
    assert SchemaQuestion.about(all_known, epsilon=1, delta=DELTA) is None


def test_the_noise_costs_a_twentieth_by_an_accountant_of_its_own(tmp_path: Path) -> None:
    question = SchemaQuestion.about(planned(tmp_path, rows(20)), epsilon=3, delta=DELTA)
    assert question is not None
    accountant = PLDAccountant(value_discretization_interval=1e-5)
    for query in question.release.queries:
        accountant.compose(dp_accounting.GaussianDpEvent(query.noise_multiplier))
    own = accountant.get_epsilon(DELTA - question.release.delta)
    assert own == pytest.approx(EPSILON_SHARE * 3, rel=2e-3)
    assert epsilon([(question.release, 1)], delta=DELTA) <= EPSILON_SHARE * 3
    # Composed alone at the whole delta it would seem cheaper: delta' is not free.
    assert accountant.get_epsilon(DELTA) < own


@pytest.mark.parametrize("categorical", [1, 3, 20])
def test_a_category_of_one_record_passes_with_the_stated_probability(
    tmp_path: Path, categorical: int
) -> None:
    question = SchemaQuestion.about(planned(tmp_path, rows(20)), epsilon=3, delta=DELTA)
    assert question is not None
    failing = DELTA_SHARE * DELTA
    for name in ("city", "income"):
        limit, std = question.threshold(name, categorical), question.std(name)
        # scipy's own tail: a count of 1 with this noise beyond the threshold, once a column.
        passes = stats.norm.sf(limit, loc=1, scale=std)
        assert categorical * passes <= failing
        assert categorical * passes == pytest.approx(failing, rel=1e-6)
        assert limit == pytest.approx(1 + std * stats.norm.isf(failing / categorical))
    assert question.release.delta == failing / (1 - failing)


@pytest.mark.parametrize("kind", ["category", "range"])
def test_what_passes_is_decided_by_noisy_counts(tmp_path: Path, kind: str) -> None:
    """A count that is at the limit passes half of the time."""
    question = SchemaQuestion.about(planned(tmp_path, rows(20)), epsilon=3, delta=DELTA)
    assert question is not None
    limit = question.threshold("city", 1) if kind == "category" else question.passing("age")
    column = ColumnCounts()
    column.add(["7"] * round(limit), set())
    passed = 0
    for seed in range(100):
        noisy = private_schema._Noisy(SeededSource(seed), question)
        if kind == "range":
            passed += noisy.range("age", column).range is not None
        else:
            passed += noisy.categories("city", column, 1).categories == ("7",)
    assert 25 < passed < 75  # five deviations of a hundred fair coins


def test_a_delta_of_a_release_is_added_once_for_each(tmp_path: Path) -> None:
    question = SchemaQuestion.about(planned(tmp_path, rows(20)), epsilon=3, delta=DELTA)
    assert question is not None
    release = question.release
    assert epsilon([(release, 11)], delta=DELTA) == math.inf
    assert epsilon([(release, 5)], delta=DELTA) < math.inf
    assert epsilon([(release, 5)], delta=DELTA, relation="replace_one") == math.inf  # twice each


def test_what_is_found_on_enough_rows(tmp_path: Path) -> None:
    plan = planned(tmp_path, rows(6000))
    schema = found(plan, seed=3).schema
    assert schema["city"].categories == ("Lima", "Oslo", "Rome")  # by name
    assert schema["sex"].categories == ("f", "m")
    assert schema["income"].categories == ("high", "low")
    assert schema["income"].fill is None  # rows without a target are left out
    assert schema["age"].range == (15.0, 100.0)
    assert schema["age"].fill == 60.0  # the middle of 50 to 70, where the median lies
    low, high = schema["stay"].range or (math.nan, math.nan)
    assert 0 <= low < 1
    assert 15 <= high <= 30
    assert schema.records == pytest.approx(6000, rel=0.05)
    assert schema.records != 6000


def test_a_row_that_is_alone_in_a_category_changes_nothing(tmp_path: Path) -> None:
    """Under the same noise, the tables with and without it have one encoding."""
    lines = rows(3000)
    encodings = set()
    for extra in ([], ["200,Cairo,x,99,rich"]):
        for k in range(3):  # at places that are trained on, or held out
            filled = lines + rows(k, seed=1)
            plan = planned(tmp_path, filled + extra)
            schema = found(plan, seed=0).schema
            assert "Cairo" not in str(schema)
            splits = table(
                tmp_path / "people.csv",
                target="income",
                sensitive="sex",
                found=("age", "city", "sex", "stay", "income"),
                **schema.options(),
            )
            assert splits.encoding is not None
            encodings.add((k, splits.encoding, splits.groups, splits.classes))
    assert len(encodings) == 3
    assert splits.groups == ("f", "m", "(other)")


def test_it_is_charged_before_any_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    from plumbline.experiments import private_schema

    add, charge = private_schema.add_noise, Ledger.charge

    def added(*arguments: Any) -> Any:
        order.append("noise")
        return add(*arguments)

    def charged(self: Ledger, *arguments: Any, **more: Any) -> Any:
        made = charge(self, *arguments, **more)
        order.append("charged")
        return made

    monkeypatch.setattr(private_schema, "add_noise", added)
    monkeypatch.setattr(Ledger, "charge", charged)
    plan = planned(tmp_path, rows(200))
    with Ledger.open(tmp_path / "ledger") as ledger:
        result = found(plan, ledger=ledger)
    assert order[0] == "charged"
    assert set(order[1:]) == {"noise"}
    book = Ledger.read(tmp_path / "ledger")
    assert book.entries(result.run) == [(result.release.to_dict(), 1)]
    assert result.run.startswith("schema-")

    def refuses(*_: Any, **__: Any) -> None:
        raise LedgerError("the disk is full")

    order.clear()
    monkeypatch.setattr(Ledger, "charge", refuses)
    with Ledger.open(tmp_path / "other") as ledger, pytest.raises(LedgerError):
        found(plan, ledger=ledger)
    assert order == []


def test_the_noise_is_that_of_the_secure_source(tmp_path: Path) -> None:
    plan = planned(tmp_path, rows(3000))
    numbers = {found(plan).schema.records for _ in range(4)}
    assert len(numbers) > 1
    assert len({found(plan, seed=1).schema.records for _ in range(3)}) == 1


def test_every_number_is_in_one_public_bin() -> None:
    edges, zero = NUMBERS.edges, NUMBERS.zero
    assert zero is not None
    assert list(edges) == sorted(set(edges))
    assert len(NUMBERS) < 250
    values = [0.0, 1e-9, 1.0, 1.4999, 1.5, 64, -64, 1e300, -1e300]
    places = NUMBERS.of(torch.tensor(values, dtype=torch.float64).numpy()).tolist()
    for value, place in zip(values, places, strict=True):
        low, high = edges[place], edges[place + 1]
        assert low <= min(max(value, -1e12), 1e12 - 1) < high
    assert places[0] == places[1] == zero
    ends = NUMBERS.ends
    assert ends(zero) == (0.0, 0.0)
    assert all(ends(a)[1] == ends(b)[0] for a, b in itertools.pairwise(range(zero)))


def test_every_day_is_in_the_bin_of_its_year() -> None:
    cells = ["1900-01-01", "1999-12-31", "2000-01-01", "2099-12-31", "1066-10-14", "2500-01-01"]
    years = (1900 + YEARS.of(days_of(cells))).tolist()
    assert years == [1900, 1999, 2000, 2099, 1900, 2099]
    assert len(YEARS) == 200


def test_a_schema_of_numbers_with_zeros_only_keeps_the_sign(tmp_path: Path) -> None:
    lines = [f"{k % 50 + 20},Rome,f,0,{'high' if k % 2 else 'low'}" for k in range(3000)]
    schema = found(planned(tmp_path, lines), seed=0).schema
    low, high = schema["stay"].range or (1.0, 0.0)
    assert low < 0 < high
    assert isinstance(schema, Schema)


def dated(count: int, seed: int = 0) -> list[str]:
    """Rows of another table: a day, a code that is hashed, one by its beginning, text, a class."""
    draw = random.Random(seed)
    return [
        f"{draw.randint(1, 28)}.{draw.randint(1, 12)}.{draw.randint(2015, 2019)},"
        f"c{draw.randrange(10**6)},{draw.choice('AB')}{draw.randrange(10**4)},"
        f"a note {draw.random()},{draw.choice(['low', 'low', 'high'])}"
        for _ in range(count)
    ]


DATED: dict[str, Any] = {
    "target": "income",
    "dates": {"day": "dmy"},
    "hashes": {"code": 8},
    "prefixes": {"icd": 1},
    "texts": {"note": 16},
}


def plan_of(folder: Path, lines: list[str], **options: Any) -> TablePlan:
    path = folder / "days.csv"
    path.write_text("\n".join(["day,code,icd,note,income", *lines]) + "\n")
    return plan_table(path, **{**DATED, **options})


@pytest.mark.parametrize("extra", ["1.1.1700,new,Z,x,rich", "31.12.2098,c1,A1,,low", ",,,,low"])
def test_of_dates_and_beginnings_one_row_moves_one_count_each(tmp_path: Path, extra: str) -> None:
    lines = dated(60)
    plan = plan_of(tmp_path, lines)
    question = SchemaQuestion.about(plan, epsilon=1, delta=DELTA)
    assert question is not None
    assert question.asked == ("day", "icd", "income")  # hashes ask nothing
    assert question.unknown == ()  # every kind is declared
    asked = question.release.queries[-1]
    assert asked.sensitivity == pytest.approx(math.sqrt(3 + 3), rel=1e-15)  # with the number
    moves = []
    for more in range(12):
        filled = lines + dated(more, seed=1)
        one, other = (plan_of(tmp_path, rows).counts() for rows in (filled, [*filled, extra]))
        days = (one.columns["day"].bins - other.columns["day"].bins) / question.std("day")
        changed = [days, torch.tensor([float(one.rows - other.rows)]).double() / question.std()]
        for name in ("icd", "income"):
            values = sorted({*one.columns[name].categories, *other.columns[name].categories})
            pair = (one.columns[name].categories, other.columns[name].categories)
            moved = torch.tensor([float(pair[0][v] - pair[1][v]) for v in values]).double()
            changed.append(moved / question.std(name))
        moves.append(float(torch.cat(changed).norm()) * asked.noise_multiplier)
    assert max(moves) <= 1.0
    assert min(moves) == 0  # where the row is held out


def test_dates_and_beginnings_are_found(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, dated(6000))
    schema = found(plan, seed=3).schema
    options = schema.options()
    assert options["ranges"] == {"day": ["2015-01-01", "2020-01-01"]}  # whole years
    assert options["categories"] == {"icd": ["A", "B"], "income": ["high", "low"]}
    assert options["fills"]["icd"] in "AB"  # the most frequent by noisy counts
    assert options["fills"]["day"].startswith("2017-07-0")  # the middle of the median's year
    splits = table(tmp_path / "days.csv", **{**DATED, **options}, found=plan.undeclared)
    assert splits.encoding is not None
    assert len(splits.features) == (5 + 1) + (8 + 1) + (3 + 1) + (16 + 1)
    assert splits.not_covered == ()


def test_what_one_row_lacks_changes_no_feature(tmp_path: Path) -> None:
    """Every column has its flag, whether a cell is missing or none is."""
    lines = dated(3000)
    encodings = set()
    for extra in ([], [",,,,low"], ["1.1.1700,x,Z,y,low"]):
        plan = plan_of(tmp_path, lines + extra)
        schema = found(plan, seed=0).schema
        options = {**DATED, **schema.options(), "found": plan.undeclared}
        encodings.add(table(tmp_path / "days.csv", **options).encoding)
    assert len(encodings) == 1
