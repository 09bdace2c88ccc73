"""A recipe on a table, with the table's schema settled before its first run.

What the recipe does not declare is found privately, once for all of its runs: at a share of its
smallest epsilon, on the training rows of its first seed. Each run counts that release as its own,
and a record that is not among those rows is protected all the more. What was found is kept in the
experiment's folder and put into the recipe, so that every run, in whichever process, has the same;
the same command again asks nothing again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from plumbline.data import Split, Splits
from plumbline.data.table_files import TableSource
from plumbline.data.table_options import STATED
from plumbline.data.table_plan import TablePlan, plan_table
from plumbline.data.table_schema import NUMBER, Column, Schema, declared
from plumbline.experiments.charging import open_ledger
from plumbline.experiments.compatibility import check_fits
from plumbline.experiments.data_identity import keep_identity
from plumbline.experiments.deciding import check_decision
from plumbline.experiments.files import (
    SCHEMA,
    SCHEMA_LEDGER,
    make_folder,
    read_json,
    write_json,
)
from plumbline.experiments.private_schema import FoundSchema, SchemaQuestion, find_schema
from plumbline.experiments.recipe import DataPart, FoundPart, Recipe, RecipeError
from plumbline.experiments.run_spec import RunSpec
from plumbline.experiments.schema_checks import check_enough, check_found, declaring
from plumbline.experiments.table_ledgers import table_source
from plumbline.experiments.table_remarks import table_remarks
from plumbline.mechanism.ledger import Ledger
from plumbline.training.distributed import Ranks

_ZERO = 1e-5  # bins so near to zero are those of zeros
SchemaSource = Literal["declared", "found privately", "from the data"]


class Settled(NamedTuple):
    """A recipe whose data say all that a run needs.

    Attributes:
        recipe: The recipe.
        words: What was found, and what to declare, in sentences; nothing where all was known.
    """

    recipe: Recipe
    words: tuple[str, ...] = ()


def settled(
    recipe: Recipe,
    root: Path,
    *,
    seed: int | None = None,
    ledger: str | os.PathLike[str] | None = None,
    ask: bool = True,
) -> Settled:
    """The recipe with the schema of its table, found privately where it is not declared.

    Args:
        recipe: What is to be run.
        root: The folder of the experiment.
        seed: Of a single run, of its data and its noise; by default the recipe's first.
        ledger: Where the release is charged before it is made; by default the table's ledger, and
            one beside what was found. Each run's own ledger is charged with it too.
        ask: Whether the rows may be asked. Not by the parts of a job array: each would ask, and be
            answered with other noise.

    Raises:
        TableError: If the table cannot be used as described, or too little was found.
        RecipeError: If the recipe does not go with a schema that is found.
        LedgerError: If the release could not be charged; nothing was released then.
    """
    for row in recipe.methods:
        if row.data is not None and _source(row.data) is not None:
            raise RecipeError(
                f"The row '{row.title}' has a table of its own, whose schema is not found for it: "
                "make it the data of a recipe of its own."
            )
    if _source(recipe.data) is None:
        return Settled(recipe)
    ranks = Ranks.here()
    with ranks.failing_together():
        return ranks.from_first("the schema", lambda: _settled(recipe, root, seed, ledger, ask))


def _source(part: DataPart) -> TableSource | None:
    """The table of which something may be unknown; None for other data, and on request."""
    if part.found is not None or part.options.get("from_data"):
        return None
    return table_source(part)


def _settled(
    recipe: Recipe,
    root: Path,
    seed: int | None,
    ledger: str | os.PathLike[str] | None,
    ask: bool,
) -> Settled:
    secure = recipe.noise == "secure" and seed is None
    first = recipe.seeds[0] if seed is None else seed
    spec = RunSpec(recipe, recipe.methods[0], first)
    plan = table_plan(recipe.data, first)
    assert plan is not None  # it has a source
    budget, epsilon = recipe.budget, _least(recipe)
    if not plan.undeclared and plan.schema.records is not None:
        return Settled(recipe)
    if epsilon is None or budget.relation != "add_remove":
        wrong = "no epsilon" if epsilon is None else f"the relation {budget.relation}"
        raise RecipeError(
            f"The budget has {wrong}, and a table's schema can only be found for a share of an "
            "epsilon that protects one record added or removed. Declare the schema and the number "
            "of records (--schema, --records), or take them from the rows (--from-data)."
        )
    if plan.schema.records is None:
        _check_rate(recipe)
    question = SchemaQuestion.about(
        plan,
        epsilon=epsilon,
        delta=budget.delta,
        accountant=budget.accountant,
        seeded=not secure,
    )
    assert question is not None  # something is not declared
    _check_parts(recipe, plan, first)
    home = root / f"schema-{_digest(recipe, epsilon, first, secure)}"
    if (home / SCHEMA).is_file():
        keep_identity(home, spec)
        stored = read_json(home / SCHEMA)
    elif not ask:
        raise RecipeError(
            "The parts of a job array cannot find the schema of a table: each would ask the rows, "
            "and get another answer. Declare it (--schema, --records; `plumbline data schema` "
            "writes the file), or take it from the rows (--from-data)."
        )
    else:
        counts = plan.counts()  # which may refuse the table, before anything is charged
        check_enough(plan, question, counts.rows)
        make_folder(home)
        keep_identity(home, spec)
        with open_ledger(home / SCHEMA_LEDGER, recipe.data, ledger) as book:
            found = find_schema(plan, counts, question, seed=None if secure else first, ledger=book)
        stored = _stored(found, question)
        write_json(home / SCHEMA, stored)
    schema = declared(**stored["options"])
    check_found(plan, question, schema, stored["empty"])
    return _with(recipe, plan, schema, stored)


def _stored(found: FoundSchema, question: SchemaQuestion) -> dict[str, Any]:
    """What was found as plain values; columns of which nothing was found are apart."""
    schema = found.schema
    empty = [n for n in found.columns if not schema[n].complete or schema[n].categories == ()]
    kept = {name: column for name, column in schema.columns.items() if name not in empty}
    part = FoundPart(
        run=found.run,
        release=found.release.to_dict(),
        columns=found.columns,
        records=question.records,
    )
    options = Schema(kept, found.schema.records).options()
    return {"options": options, "empty": empty, "found": part.model_dump(mode="json")}


def _with(recipe: Recipe, plan: TablePlan, schema: Schema, stored: dict[str, Any]) -> Settled:
    """The recipe with what was found; a column in which nothing was found is left out."""
    part, empty = recipe.data, stored["empty"]
    options = {k: v for k, v in part.options.items() if k not in STATED} | stored["options"]
    if empty:
        options["drop"] = [*part.options.get("drop", ()), *empty]
    found = FoundPart.model_validate(stored["found"])
    data = part.model_copy(update={"options": options, "found": found})
    listed = [f"about {schema.records:,} rows"] if found.records else []
    listed += [_words(plan, name, schema[name]) for name in found.columns if name not in empty]
    words = [f"Found privately about the table: {'; '.join(listed)}. Declare what you know."]
    words += table_remarks(data, None)
    for name in empty:
        if name in plan.sensitive:
            words.append(
                f"No group of {name} was found, so that all rows are one group. To tell groups "
                f"apart, add {declaring(name, Column())}, with their names."
            )
    if empty:
        words.append(
            f"Left out, since nothing was found of them: {', '.join(empty)}. Declare them to learn "
            "from them: --categories or --range, and of dates, codes and text --date, --hash and "
            "--text (`plumbline data look` shows which they hold)."
        )
    return Settled(recipe.model_copy(update={"data": data}), tuple(words))


def _words(plan: TablePlan, name: str, column: Column) -> str:
    missing = ""
    if plan.missing == "fill" and column.fill is not None and name not in plan.sensitive:
        missing = f" ({_short(column, column.fill)} if missing)"
    if column.range is not None:
        low, high = (_short(column, end) for end in column.range)
        if max(map(abs, column.range)) < _ZERO:
            return f"{name} is zero, above or below it{missing}"
        return f"{name} from {low} to {high}{missing}"
    values = column.categories or ()
    if name == plan.target and len(values) > 1:
        return f"{name} is {', '.join(values)} (other rows take no part)"
    return f"{name} is {', '.join(values)}, or another{missing}"


def _short(column: Column, value: float | str) -> str:
    shown = column.shown(value)
    return shown if isinstance(shown, str) else f"{shown:g}"


def charge_again(found: FoundPart, ledger: Ledger) -> None:
    """Charges a run's own ledger with what was released for it and others, where that is not."""
    ledger.repeat(found.release, run=found.run)


def schema_source(part: DataPart, splits: Splits) -> SchemaSource | None:
    """Where the ranges, categories and classes of a table come from; None for other data."""
    if splits.encoding is None:
        return None
    if splits.not_covered:
        return "from the data"
    return "declared" if part.found is None else "found privately"


def table_plan(part: DataPart, seed: int) -> TablePlan | None:
    """A table as it is described; None for other data, and for one that is taken as it is."""
    source = _source(part)
    if source is None:
        return None
    options = {name: value for name, value in part.options.items() if name != "path"}
    return plan_table(source, **{"seed": seed, **options})


def _least(recipe: Recipe) -> float | None:
    """The smallest epsilon of a recipe's runs; None if one of them has a noise multiplier."""
    own = [row.epsilon for row in recipe.rows if row.epsilon is not None]
    if recipe.budget.epsilon is None:
        return None
    return min([recipe.budget.epsilon, *own])


def _check_rate(recipe: Recipe) -> None:
    """Refuses batch sizes where the number of records is private.

    The sampling rate would be their quotient, and so depend on the data, as would the noise that is
    calibrated to it; but what is accounted must be known before the data are looked at.
    """
    sized = [row.title for row in recipe.methods if row.expected_batch_size is not None]
    if recipe.budget.expected_batch_size is not None or sized:
        raise RecipeError(
            "A batch size is given, and the number of records is not declared: the sampling rate, "
            "one divided by the other, would follow from private records. Declare the number of "
            "rows (records, --records N), leave the batch size out or give a sampling rate, or "
            "take the number from the rows as they are (--from-data)."
        )


def _check_parts(recipe: Recipe, plan: TablePlan, seed: int) -> None:
    """Refuses a network or method that cannot take a table, before anything is charged.

    The table here has one feature for each column, and no record of anybody's.
    """
    target = plan.schema[plan.target]
    known = () if target.kind == NUMBER else target.categories
    if known is not None:
        check_decision(recipe, known)
    x, y = torch.zeros(2, len(plan.features)), torch.zeros(2, dtype=torch.int64)
    groups = tuple(map(str, range(2))) if plan.sensitive else ()
    part = Split(x, y, y if groups else None)
    stand_in = Splits(
        "none", part, part, classes=("0", "1") if known is None else known, groups=groups
    )
    if known is None:  # whose names, given with weights, are then those that will be found
        recipe = recipe.model_copy(update={"class_weights": {}})
    for row in recipe.methods:
        if "features" not in (row.model or recipe.model).options:
            check_fits(RunSpec(recipe, row, seed), stand_in)


def _digest(recipe: Recipe, epsilon: float, seed: int, secure: bool) -> str:
    """A name for what is asked of which table, at which cost."""
    asked = [
        recipe.data.model_dump(mode="json"),
        epsilon,
        recipe.budget.delta,
        recipe.budget.accountant,
        seed,
        secure,
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:10]
