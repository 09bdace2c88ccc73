"""Whether what was found about a table is enough for a run, and what to declare where it is not.

A run goes on with what was found: one class and all other values together, and the columns of which
something was found. It needs a class, or the range of a target that is a number, and one column.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from scipy import special

from plumbline.data.files import TableError
from plumbline.data.table_plan import TablePlan
from plumbline.data.table_schema import DATE, MEASURED, Column, Schema
from plumbline.experiments.private_schema import SURE, SchemaQuestion

_LISTED = 5  # the most options that an error proposes
_RISK = 0.01  # how likely it may be that too little is found, after it was paid for


def check_enough(plan: TablePlan, question: SchemaQuestion, rows: int) -> None:
    """Refuses a table in which too little would be found, before that is charged.

    It knows the number of training rows, and no more: the declared one, or else the exact one. The
    refusal is for whoever holds the table; who tells it to others tells that there are fewer rows
    than it asks for.

    Args:
        plan: The table.
        question: What is to be asked.
        rows: How many rows are trained on.

    Raises:
        TableError: If chances are that no class is found, or nothing of any column, though half of
            the rows agree on a value in each of them.
    """
    known = plan.training_records or rows
    hidden = list(_at_risk(plan, question, known))
    if not hidden:
        return
    needed = known
    while any(_at_risk(plan, question, needed)):
        needed += needed // 20 + 1
    _refuse(
        plan, plan.schema, hidden,
        f"can be found privately for a twentieth of epsilon: that takes some {_about(needed)} "
        "training rows, or a third of them with three times the epsilon. Nothing was charged.",
    )  # fmt: skip


def check_found(
    plan: TablePlan, question: SchemaQuestion, schema: Schema, empty: Sequence[str]
) -> None:
    """Refuses a schema in which something is missing that a run needs, and says what to declare.

    Args:
        plan: The table.
        question: What was asked.
        schema: What was declared and found.
        empty: The columns of which nothing was found.

    Raises:
        TableError: If nothing was found of the target, or of any column to learn from.
    """
    if stopping(plan, empty):
        rows = max(least_rows(plan, question, name) for name in empty)
        _refuse(
            plan, schema, empty,
            "was found privately for a twentieth of epsilon, which is spent: a value shows if some "
            f"{_about(rows)} training rows have it, and with three times the epsilon if a third of "
            "these do.",
        )  # fmt: skip


def least_rows(plan: TablePlan, question: SchemaQuestion, name: str) -> float:
    """How many rows must have a value, a number say, for it to be found."""
    kinds = {one: plan.schema[one].kind for one in question.asked}
    ways = [question.passing(name)] if kinds[name] in (*MEASURED, None) else []
    if kinds[name] not in MEASURED:
        categorical = sum(kind not in MEASURED for kind in kinds.values())
        ways.append(question.threshold(name, categorical))
    return max(ways)


def stopping(plan: TablePlan, empty: Sequence[str]) -> list[str]:
    """Of columns of which nothing is found, those without which a run stops."""
    if plan.target in empty:
        return [plan.target]
    return [*empty] if set(plan.features) <= set(empty) else []


def declaring(name: str, column: Column) -> str:
    """The option that declares a column, with a place for its values."""
    if column.kind in MEASURED:
        return f"--range {name}={'FIRST-DAY:LAST-DAY' if column.kind == DATE else 'LOW:HIGH'}"
    values = ",".join([*(column.categories or ("A",)), "B"])
    return f"--categories {name}={values}"


def _at_risk(plan: TablePlan, question: SchemaQuestion, rows: int) -> Iterator[str]:
    """The columns of which nothing might be found in so many rows, where a run needs one."""
    missed = {name: _missed(plan, question, name, rows) for name in question.asked}
    if missed.get(plan.target, 0.0) > _RISK:
        yield plan.target
    if math.prod(missed.get(name, 0.0) for name in plan.features) > _RISK:
        yield from (name for name in plan.features if name in missed)


def _missed(plan: TablePlan, question: SchemaQuestion, name: str, rows: int) -> float:
    """How likely nothing is found of a column, if half of so many rows have one value."""
    kind = plan.schema[name].kind
    found = float(special.ndtr((rows / 2 - least_rows(plan, question, name)) / question.std(name)))
    if kind is None:  # which must be plain first
        found *= float(special.ndtr(rows / question.kind_std - SURE))
    return 1 - found


def _about(rows: float) -> str:
    return f"{float(f'{rows:.2g}'):,.0f}"


def _refuse(plan: TablePlan, schema: Schema, columns: Iterable[str], why: str) -> NoReturn:
    # The target first: without it there is nothing to learn.
    listed = sorted(columns, key=lambda name: name != plan.target)
    advice = [declaring(name, schema[name]) for name in listed[:_LISTED]]
    advice += ["and so on for the other columns"] if len(listed) > _LISTED else []
    open_kind = any(schema[name].kind is None for name in listed[:_LISTED])
    numbers = " (--range COLUMN=LOW:HIGH for one of numbers)" if open_kind else ""
    raise TableError(
        f"Too little of {plan.source.title} {why} Declare what you know: add {' '.join(advice)} to "
        f"the command, with the table's own values{numbers}, or fill in the file that `plumbline "
        "data schema` writes (--schema). Or take it from the rows as they are (--from-data), which "
        "epsilon does not cover."
    )
