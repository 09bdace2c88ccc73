"""The target of a table: what it is taken for, and numbers as they are trained and tested on."""

from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline.data import TableError, load
from plumbline.data.encoding import from_unit_range
from plumbline.data.table_counts import ColumnCounts
from plumbline.data.table_schema import CATEGORY, NUMBER, Column
from plumbline.data.table_target import (
    as_target,
    in_class_order,
    is_number,
    numbers_of_target,
    require_classes,
)


@pytest.fixture
def people(tmp_path: Path) -> str:
    rows = [f"{20 + place % 50},{100.0 * (place % 40)},{place % 2}" for place in range(200)]
    path = tmp_path / "people.csv"
    path.write_text("age,cost,ill\n" + "\n".join(rows) + "\n")
    return str(path)


def loaded(path: str, **options: Any) -> Any:
    return load("table", path=path, from_data=True, **options)


def test_a_number_with_a_range_is_predicted_as_one(people: str) -> None:
    splits = loaded(people, target="cost", ranges={"cost": [0, 2000]})
    assert splits.classes == ()
    assert splits.target_range == splits.encoding.target_range == (0.0, 2000.0)
    assert splits.train.y.dtype == torch.float32
    # Training targets stay within the range, test targets are as they are.
    assert float(splits.train.y.max()) == 1.0
    assert float(splits.test.y.max()) > 1.0
    found = from_unit_range(splits.test.y, splits.target_range)
    assert set(found.round().tolist()) <= {100.0 * place for place in range(40)}


def test_its_range_is_taken_from_the_rows_on_request(people: str) -> None:
    splits = loaded(people, target="cost", task="regression")
    low, high = splits.target_range
    assert 0 <= low < high <= 3900
    assert any("the range of cost" in one for one in splits.not_covered)


@pytest.mark.parametrize("target", ["age", "cost"])
def test_many_numbers_are_never_taken_for_classes_silently(people: str, target: str) -> None:
    with pytest.raises(TableError, match=f"are they amounts or classes.*--range {target}=LOW:HIGH"):
        loaded(people, target=target)
    assert len(loaded(people, target="age", task="classification").classes) == 50


def test_few_numbers_are_classes(people: str) -> None:
    assert loaded(people, target="ill").classes == ("0", "1")


def test_a_row_without_a_number_is_missing(people: str) -> None:
    text = Path(people).read_text().replace("30,1000.0,0", "30,unknown,0")
    Path(people).write_text(text)
    with pytest.raises(TableError, match="The column 'cost' has no value"):
        load(
            "table", path=people, from_data=True, target="cost", task="regression", missing="error"
        )
    kept = loaded(people, target="cost", task="regression", missing="drop")
    assert len(kept.train) + len(kept.test) < 200


@pytest.mark.parametrize(
    ("column", "task", "words"),
    [
        (Column(NUMBER, range=(0.0, 1.0)), "classification", "declared with a range"),
        (Column(CATEGORY, categories=("a", "b")), "regression", "declared with values"),
        (Column(CATEGORY, categories=("a",)), None, "one value only"),
    ],
)
def test_contradictions_are_refused(column: Column, task: Any, words: str) -> None:
    with pytest.raises(TableError, match=words):
        as_target("cost", column, task)


def test_the_kind_follows_from_what_is_declared() -> None:
    assert as_target("t", Column(NUMBER, range=(0.0, 1.0)), None).kind == NUMBER
    assert as_target("t", Column(), None).kind == CATEGORY
    assert as_target("t", Column(), "regression").kind == NUMBER
    assert is_number({"target": "t", "ranges": {"t": [0, 1]}})
    assert not is_number({"target": "t", "ranges": {"u": [0, 1]}})
    assert not is_number({"target": "t", "ranges": {"t": [0, 1]}, "task": "classification"})


def test_words_of_many_values_are_not_amounts() -> None:
    column = ColumnCounts()
    column.add([f"code {place}" for place in range(50)], {""})
    require_classes("t", column, said=False)


def test_a_constant_target_is_refused() -> None:
    column = ColumnCounts()
    column.add(["no", "no", ""], {""})
    for said in (True, False):
        with pytest.raises(TableError, match="one value only"):
            require_classes("t", column, said=said)


def test_targets_are_scaled() -> None:
    cells = ["0", "5", "10", "20"]
    assert numbers_of_target(cells, (0.0, 10.0), test=False).tolist() == [-1, 0, 1, 1]
    assert numbers_of_target(cells, (0.0, 10.0), test=True).tolist() == [-1, 0, 1, 3]


@pytest.mark.parametrize(
    ("values", "ordered"),
    [
        (["yes", "no"], ("no", "yes")),
        (["nein", "ja"], ("nein", "ja")),
        (["Ja", "Nee"], ("Nee", "Ja")),
        (["1", "0"], ("0", "1")),
        (["survived", "died"], ("died", "survived")),
        (["ja", "nein", "vielleicht"], ("ja", "nein", "vielleicht")),
        (["ja"], ("ja",)),
        ([], ()),
    ],
)
def test_yes_is_the_second_class_in_every_language(
    values: list[str], ordered: tuple[str, ...]
) -> None:
    assert in_class_order(values) == in_class_order(reversed(values)) == ordered


@pytest.mark.parametrize("known", [{}, {"categories": {"sick": ["ja", "nein"]}}])
def test_the_order_that_is_declared_stays(tmp_path: Path, known: Any) -> None:
    path = tmp_path / "sick.csv"
    path.write_text("age,sick\n" + "".join(f"{k},{'ja' if k % 9 else 'nein'}\n" for k in range(60)))
    assert loaded(str(path), target="sick", **known).classes == (
        ("ja", "nein") if known else ("nein", "ja")
    )
