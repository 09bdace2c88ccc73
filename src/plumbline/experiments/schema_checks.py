"""Whether what was found about a table is enough for a run, and what to declare where it is not.

A run goes on with what was found: one class and all other values together, and the columns of which
something was found. It needs a class, or the range of a target that is a number, and one column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plumbline.data.files import TableError
from plumbline.data.table_plan import TablePlan
from plumbline.data.table_schema import DATE, MEASURED, Column, Schema
from plumbline.experiments.private_schema import SchemaQuestion

_LISTED = 5  # the most options that an error proposes
_MARGIN = 2  # a value that half of the rows have is to show


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
        TableError: If half of the rows are too few for one class, or for one column's values.
    """
    known = plan.training_records or rows
    hidden = [name for name in question.asked if known < _MARGIN * _least(plan, question, name)]
    if plan.target in hidden or set(plan.features) <= set(hidden):
        _refuse(plan, question, plan.schema, hidden, spent=False)


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
    if plan.target in empty or set(plan.features) <= set(empty):
        _refuse(plan, question, schema, empty, spent=True)


def declaring(name: str, column: Column) -> str:
    """The option that declares a column, with a place for its values."""
    if column.kind in MEASURED:
        return f"--range {name}={'FIRST-DAY:LAST-DAY' if column.kind == DATE else 'LOW:HIGH'}"
    values = ",".join([*(column.categories or ("A",)), "B"])
    return f"--categories {name}={values}"


def _least(plan: TablePlan, question: SchemaQuestion, name: str) -> float:
    """How many rows must have a value, a number say, for anything of a column to be found."""
    kind = plan.schema[name].kind
    ways = [question.passing(name)] if kind in (*MEASURED, None) else []
    return min([*ways, *([] if kind in MEASURED else [question.threshold(name, 1)])])


def _refuse(
    plan: TablePlan,
    question: SchemaQuestion,
    schema: Schema,
    columns: Iterable[str],
    *,
    spent: bool,
) -> None:
    # The target first: without it there is nothing to learn.
    listed = sorted(columns, key=lambda name: name != plan.target)
    advice = [declaring(name, schema[name]) for name in listed[:_LISTED]]
    advice += ["and so on for the other columns"] if len(listed) > _LISTED else []
    rows = max(_least(plan, question, name) for name in listed)
    open_kind = any(schema[name].kind is None for name in listed[:_LISTED])
    numbers = " (--range COLUMN=LOW:HIGH for one of numbers)" if open_kind else ""
    found, paid = ("was found", ", which is spent") if spent else ("can be found", "")
    raise TableError(
        f"Too little of {plan.source.title} {found} privately for a twentieth of epsilon{paid}: a "
        f"value shows if some {float(f'{rows:.2g}'):,.0f} training rows have it, and with three "
        f"times the epsilon if a third of these do.{'' if spent else ' Nothing was charged.'} "
        f"Declare what you know: add {' '.join(advice)} to the command, with the table's own "
        f"values{numbers}, or fill in the file that `plumbline data schema` writes (--schema). Or "
        "take it from the rows as they are (--from-data), which epsilon does not cover."
    )
