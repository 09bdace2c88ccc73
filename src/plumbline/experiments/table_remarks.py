"""What a reader of a table's results must know: the same in the console, on the page and card.

Which class is positive, which values of the target are one class, and how many rows take no part.
What is said of rows is of test rows alone, as all results are: how many training rows take part is
not told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plumbline.data.table_records import with_others
from plumbline.data.table_schema import Column
from plumbline.experiments.recipe import DataPart
from plumbline.experiments.schema_checks import declaring


def table_remarks(
    part: DataPart, rows: Mapping[str, int] | None, classes: Sequence[str] = ()
) -> list[str]:
    """Sentences, as far as there is something to say.

    Args:
        part: The data of a run, with what was found.
        rows: How many test rows there are, and how many are left out: ``RunResult.rows``.
        classes: The classes' names, of a run that is finished: ``RunResult.classes``.
    """
    said = (positive_words(part, classes), _others(part), _left_out(rows))
    return [one for one in said if one is not None]


def positive_words(part: DataPart, classes: Sequence[str]) -> str | None:
    """Says which of two classes the true positives and the average precision are of."""
    if part.name != "table" or len(classes) != 2:
        return None
    target = part.options.get("target", "")
    return (
        f"Positive is {target} = {classes[1]}, the class that is named last (--categories "
        f"{target}={','.join(classes)})."
    )


def _others(part: DataPart) -> str | None:
    """Says that only one class was found."""
    target = part.options.get("target", "")
    values = part.options.get("categories", {}).get(target, ())
    if part.found is None or target not in part.found.columns or len(values) != 1:
        return None
    return (
        f"Of {target}, only '{values[0]}' was found: all its other values together are the class "
        f"'{with_others(values)[1]}'. To have them by name, add "
        f"{declaring(target, Column(categories=tuple(values)))}, with their names in place of B."
    )


def _left_out(rows: Mapping[str, int] | None) -> str | None:
    if rows is None or not rows["left_out"]:
        return None
    return (
        f"Of {rows['test_rows']:,} test rows, {rows['left_out']:,} "
        f"({100 * rows['left_out'] / rows['test_rows']:.1f} %) are left out: they lack a value "
        "that is needed, or have a class that is not known. Training rows are left out alike."
    )
