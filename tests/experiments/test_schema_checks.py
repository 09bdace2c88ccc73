"""What a run needs of what was found about a table, and what is said where it is not there."""

import contextlib
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.files import TableError
from plumbline.data.table_plan import TablePlan
from plumbline.data.table_schema import Column, Schema
from plumbline.experiments.private_schema import SchemaQuestion, find_schema
from plumbline.experiments.schema_checks import check_enough, check_found
from plumbline.experiments.settling import _stored
from tests.experiments.test_private_schema import DELTA, planned, rows


def question_of(plan: TablePlan, epsilon: float) -> SchemaQuestion:
    question = SchemaQuestion.about(plan, epsilon=epsilon, delta=DELTA)
    assert question is not None
    return question


def test_where_no_class_was_found_it_says_what_to_declare(tmp_path: Path) -> None:
    plan = planned(tmp_path, rows(5))
    question = question_of(plan, 0.1)
    everything = ("age", "city", "sex", "stay", "income")
    with pytest.raises(TableError, match="which is spent") as error:
        check_found(plan, question, plan.schema, everything)
    shows = max(question.threshold("sex", 5), question.passing("age"))
    assert f"some {float(f'{shows:.2g}'):,.0f} training rows" in str(error.value)
    told = ("--categories income=A,B", "--categories sex=A,B", "--range COLUMN=LOW:HIGH for one of")
    for words in (*told, "Declare what you know"):
        assert words in str(error.value)
    assert "Oslo" not in str(error.value)
    check_found(plan, question, plan.schema, everything[:3])  # there are a class and a column
    with pytest.raises(TableError, match="--categories income=A,B"):
        check_found(plan, question, plan.schema, ["income"])
    with pytest.raises(TableError, match="--range age=LOW:HIGH"):
        check_found(plan, question, Schema({"age": Column("number")}), everything[:4])


def test_a_table_of_thirty_rows_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    plan = planned(tmp_path, rows(30))
    question = question_of(plan, 3)
    with pytest.raises(TableError, match=r"Nothing was charged.*--categories income=A,B"):
        check_enough(plan, question, plan.counts().rows)
    check_enough(plan, question, 100_000)
    known: dict[str, Any] = {"categories": {"sex": ["f", "m"], "income": ["low", "high"]}}
    numbers = planned(tmp_path, rows(30), **known, numeric=["age", "stay"], drop=["city", "sex"])
    with pytest.raises(TableError, match="--range age=LOW:HIGH --range stay=LOW:HIGH"):
        check_enough(numbers, question_of(numbers, 3), 30)
    # With a column that is declared, a model can be had of any number of rows.
    one = planned(tmp_path, rows(30), **known, numeric=["stay"], ranges={"age": (0, 99)})
    check_enough(one, question_of(one, 3), 30)


def least_rows(plan: TablePlan, question: SchemaQuestion) -> int:
    """How many training rows are not refused."""
    for count in itertools.count(1):
        with contextlib.suppress(TableError):
            check_enough(plan, question, 20 * count)
            return 20 * count
    raise AssertionError


@pytest.mark.parametrize("known", [{}, {"categories": {"income": ["low", "high"]}}])
def test_what_is_paid_for_is_seldom_too_little(known: dict[str, Any], tmp_path: Path) -> None:
    """With as many rows as are not refused, of which half agree on a value in each column."""
    plan = planned(tmp_path, rows(30), **known)
    question = question_of(plan, 3)
    count = least_rows(plan, question)
    with pytest.raises(TableError, match=r"some [\d,]+ training rows.*Nothing was charged"):
        check_enough(plan, question, count - 20)
    others = [f"{2.0**k},city {k},{k},{3.0**-k},high" for k in range(30)]
    lines = ["40,Oslo,f,3,low"] * (count // 2) + (others * count)[: count // 2]
    plan = planned(tmp_path, lines, **known, test=tmp_path / "people.csv")
    counts = plan.counts()
    assert counts.rows == count
    failed = 0
    for seed in range(100):
        stored = _stored(find_schema(plan, counts, question, seed=seed), question)
        try:
            check_found(plan, question, plan.schema, stored["empty"])
        except TableError:
            failed += 1
    assert failed <= 4  # 1 in 100 is expected; of 5 or more the chance is 0.4 %


def test_a_number_of_rows_that_is_declared_comes_first(tmp_path: Path) -> None:
    told = planned(tmp_path, rows(30), records=100_000)
    check_enough(told, question_of(told, 3), 30)  # nothing private is looked at


def test_of_many_columns_an_error_lists_a_few(tmp_path: Path) -> None:
    names = [f"c{k}" for k in range(40)]
    draw = random.Random(0)
    lines = [",".join(draw.choice("ab") for _ in names) for _ in range(30)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    from plumbline.data.table_plan import plan_table

    plan = plan_table(path, target="c39")
    with pytest.raises(TableError, match="and so on for the other columns") as error:
        check_enough(plan, question_of(plan, 3), 25)
    assert str(error.value).count("--categories") == 5
    assert "--categories c39=A,B" in str(error.value)
