"""A table is recognised by its rows, whatever file they are in; common rows are no match."""

import csv
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.data.csv_files import CsvForm
from plumbline.data.table_files import open_table
from plumbline.data.table_sketch import (
    KEPT,
    Overlap,
    Sketch,
    _canonical,
    named_columns,
    overlap,
    sketches,
)

KEY = bytes(range(32))
COLUMNS = ("age", "weight", "city", "code")
Rows = Sequence[Sequence[object]]


def people(count: int, seed: int) -> list[tuple[object, ...]]:
    chance = random.Random(seed)
    return [
        (
            chance.randrange(18, 95),
            round(chance.gauss(75, 12), 1),
            chance.choice(["Oslo", "Rome", "Bergen"]),
            chance.randrange(10_000),
        )
        for _ in range(count)
    ]


def write(path: Path, rows: Rows, columns: Sequence[str] = COLUMNS, **form: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, **form)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def sketch_of(
    source: Any, columns: Sequence[str] | None = None, key: bytes = KEY, form: CsvForm | None = None
) -> Sketch:
    table = open_table(source, form)
    (made,) = sketches(table, key, [columns or named_columns(table)])
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "a.csv"


def shared(place: Path, one: Rows, other: Rows, columns: Sequence[str] = COLUMNS) -> Overlap:
    first = sketch_of(write(place, one, columns))
    return overlap(first, sketch_of(write(place, other, columns)))


def test_order_and_form_do_not_matter(place: Path) -> None:
    rows = people(300, seed=0)
    known = sketch_of(write(place, rows))
    shuffled = random.Random(1).sample(rows, len(rows))
    turned = [row[::-1] for row in shuffled]
    new = sketch_of(write(place, turned, COLUMNS[::-1], delimiter=";"))
    assert new.whole == known.whole
    assert new.columns == known.columns
    written = [(f"{a}.0", f" {w}0", str(c).upper(), c2) for a, w, c, c2 in rows]
    assert sketch_of(write(place, written)).whole == known.whole
    comma = [(a, str(w).replace(".", ","), c, c2) for a, w, c, c2 in rows]
    form = CsvForm(separator=";", decimal=",")
    assert sketch_of(write(place, comma, delimiter=";"), form=form).whole == known.whole


def test_names_may_be_written_otherwise(place: Path) -> None:
    rows = people(200, 0)
    first = sketch_of(write(place, rows, ("age", "body weight", "city", "Zip.Code")))
    other = sketch_of(write(place, rows, ("AGE", "Body_Weight", " City", "zip code")))
    assert other.columns == first.columns == ("age", "body_weight", "city", "zip_code")
    assert other.whole == first.whole


def test_names_that_differ_in_signs_alone_stay_apart(place: Path) -> None:
    table = open_table(write(place, people(3, 0), ("Age", "age", "c+", "c_")))
    assert named_columns(table) == {"Age": "Age", "age": "age", "c+": "c+", "c_": "c_"}


def test_parquet_and_frames_hold_the_same_rows(place: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = [(*row, day) for row, day in zip(people(50, 0), ["2021-04-03", ""] * 25, strict=True)]
    columns = (*COLUMNS, "admitted")
    known = sketch_of(write(place, rows, columns))
    frame = pandas.read_csv(place, parse_dates=["admitted"])
    frame["age"] = frame["age"].astype("Int64")
    assert sketch_of(frame).whole == known.whole
    frame.to_parquet(place.with_suffix(".parquet"))
    assert sketch_of(place.with_suffix(".parquet")).whole == known.whole
    frame.to_csv(place)  # with a column that numbers the rows, and has no name
    assert sketch_of(place).whole == known.whole


@pytest.mark.parametrize(
    ("cell", "same"),
    [
        ("1.50", "1.5"), ("1e3", "1000"), ("-0.0", "0"), ("True", "TRUE"), ("007", "7"),
        ("N/A", ""), ("nan", ""), ("2021-04-03 00:00:00", "2021-04-03"), (" x ", "X"),
    ],
)  # fmt: skip
def test_cells_that_say_the_same(cell: str, same: str) -> None:
    assert _canonical(cell) == _canonical(same)


@pytest.mark.parametrize(
    ("cell", "other"),
    [
        ("1", "-1"), ("12345678901234567890", "12345678901234567891"), ("0.1", "0.10000001"),
        ("inf", "1e400"), ("00:00:00", ""), ("a b", "ab"), ("1_0", "10"),
    ],
)  # fmt: skip
def test_cells_that_do_not(cell: str, other: str) -> None:
    assert _canonical(cell) != _canonical(other)


def test_other_people_of_the_same_kind_are_no_match(place: Path) -> None:
    found = shared(place, people(6000, 0), people(6000, 1))
    assert not found.same
    assert found.telling


@pytest.mark.parametrize("size", [60, 1000, 9000])
def test_a_table_that_grew_and_a_part_of_one_match(place: Path, size: int) -> None:
    rows = people(size, 0)
    grown = shared(place, rows, [*rows, *people(size, 1)])
    assert grown.same
    assert grown.common / grown.known > 0.95
    part = shared(place, rows, random.Random(2).sample(rows, size // 2))
    assert part.same
    assert part.common / part.new > 0.95


def test_a_small_part_of_a_large_table_matches(place: Path) -> None:
    rows = people(30_000, 0)
    assert shared(place, rows, rows[:600]).same


def test_a_few_rows_in_common_are_not_the_same_table(place: Path) -> None:
    rows = people(4000, 0)
    assert not shared(place, rows, [*rows[:100], *people(3900, 1)]).same  # 2.5 %
    assert shared(place, rows, [*rows[:400], *people(3600, 1)]).same  # 10 %


@pytest.mark.parametrize("levels", [2, 3, 4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_common_rows_are_no_match_however_many_tables_share_them(
    place: Path, levels: int, seed: int
) -> None:
    """Answers to eight questions, by other people: thousands of rows are the same by chance."""
    chance = random.Random(seed)
    columns = [f"question {k}" for k in range(8)]
    one, other = (
        [[chance.randrange(levels) for _ in columns] for _ in range(4000)] for _ in range(2)
    )
    found = shared(place, one, other, columns)
    assert not found.same
    if levels > 3:
        assert found.common > 5  # by chance
        assert shared(place, one, [*one, *other[:400]], columns).same


def test_chance_keeps_within_the_bound_for_populations_that_differ() -> None:
    """2 sqrt(E D E D'), the mean over many pairs of tables from two skewed populations."""
    chance = np.random.default_rng(0)
    kinds = 400
    weights = [np.arange(1, kinds + 1) ** -power for power in (0.7, 1.3)]
    common, pairs = [], []
    for _ in range(400):
        counts = [chance.poisson(500 * one / one.sum()) for one in weights]
        common.append(np.sum((counts[0] == 1) & (counts[1] == 1)))
        pairs.append([np.sum(one == 2) for one in counts])
    bound = 2 * math.sqrt(math.prod(np.mean(pairs, axis=0)))
    assert 0.2 * bound < np.mean(common) < bound


def test_tables_of_a_few_rows_match_as_they_are_and_not_by_chance(place: Path) -> None:
    rows = people(12, 0)
    found = shared(place, rows, [*rows, *people(1, 1)])
    assert not found.same
    assert not found.telling  # too few to tell
    assert shared(place, people(40, 0), [*people(40, 0), *people(10, 1)]).same


def test_another_key_says_nothing(place: Path) -> None:
    write(place, people(500, 0))
    one, other = sketch_of(place), sketch_of(place, key=bytes(32))
    assert one.whole != other.whole
    assert overlap(one, other).common == 0


def test_a_sketch_has_no_cell_and_a_bounded_size(place: Path) -> None:
    rows = [(*row[:3], f"secret-{k}") for k, row in enumerate(people(9000, 0))]
    made = sketch_of(write(place, rows))
    assert len(made.digests) == KEPT
    text = str(made.to_json())
    assert "secret" not in text
    assert "Oslo" not in text
    assert len(text) < 70_000
    again = Sketch.of_json(made.to_json())
    assert (again.columns, again.whole, again.bound) == (made.columns, made.whole, made.bound)
    assert np.array_equal(again.digests, made.digests)


@pytest.mark.parametrize("sizes", [(300, 200), (9000, 200), (9000, 9000)])
def test_sketches_of_versions_together_are_that_of_all_rows(
    place: Path, sizes: tuple[int, int]
) -> None:
    one, other = people(sizes[0], 0), people(sizes[1], 1)
    joined = sketch_of(write(place, one)).with_rows(sketch_of(write(place, other)))
    whole = sketch_of(write(place, [*one, *other]))
    kept = whole.digests[whole.digests <= joined.bound]
    assert np.isin(kept, joined.digests).mean() > 0.99  # but for what is single in one of them only
    assert len(joined.digests) <= KEPT
    assert overlap(joined, sketch_of(write(place, other))).same


def test_more_columns_are_looked_at_as_fewer(place: Path) -> None:
    rows = people(500, 0)
    known = sketch_of(write(place, rows))
    more = [(*row, k) for k, row in enumerate(rows)]
    table = open_table(write(place, more, (*COLUMNS, "new")))
    projected, own = sketches(table, KEY, [known.columns, named_columns(table)])
    assert projected.whole == known.whole
    assert own.whole != known.whole
