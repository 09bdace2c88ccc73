"""A plan of a table: what its options and its header say, before any row is looked at.

``plan_table`` checks the options of a table against each other and against the columns' names; the
plan then says which rows are trained on, and what is still to be found out about the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack, get_args

import torch

from plumbline.data.csv_files import CsvForm
from plumbline.data.encoding import check_one_of
from plumbline.data.files import DataError, TableError
from plumbline.data.table_counts import ColumnCounts, Counts, count, reader_of
from plumbline.data.table_files import NO_HEADER, Table, TableSource, open_table
from plumbline.data.table_look import TableLook, look_at
from plumbline.data.table_options import STATED, Missing, TableOptions, Task
from plumbline.data.table_records import with_others
from plumbline.data.table_rows import (
    LeftOut,
    RowUse,
    TableRows,
    is_held_out,
    require_complete,
    usable,
)
from plumbline.data.table_schema import (
    CATEGORY,
    DATE,
    MEASURED,
    MOST_CATEGORIES,
    MOST_CLASSES,
    MOST_GROUPS,
    NUMBER,
    Column,
    Schema,
    declared,
)
from plumbline.data.table_target import as_target, in_class_order, require_classes
from plumbline.registry import check_options, unknown

TEST_FRACTION = 0.2


@dataclass(frozen=True)
class TablePlan:
    """A table as it was described, before any of its rows is looked at.

    Attributes:
        source: The table.
        target, sensitive, found: As of ``table``.
        features: The columns that are learned from, in the order of the file.
        schema: What is known of them, of the target and of the sensitive columns.
        drop, missing, missing_values, test_fraction, seed: As of ``table``.
        form: Of its csv file.
        test: The test rows' table, if there is one.
        task_said: Whether it was said, or declared, what kind of target it is.
        taken: The columns whose schema was taken from the training rows as they are.
    """

    source: Table
    target: str
    sensitive: tuple[str, ...]
    features: tuple[str, ...]
    schema: Schema
    found: frozenset[str]
    drop: tuple[str, ...]
    form: CsvForm
    missing: Missing
    missing_values: tuple[str, ...]
    test: Table | None
    test_fraction: float
    seed: int
    task_said: bool = True
    taken: frozenset[str] = frozenset()

    @property
    def used(self) -> list[str]:
        """All columns that are looked at, in the order of the file."""
        wanted = {*self.features, *self.sensitive, self.target}
        return [name for name in self.source.names if name in wanted]

    @property
    def undeclared(self) -> list[str]:
        """The columns that the schema does not say enough about."""
        known = {name for name in self.sensitive if name in self.found}  # of which no group was
        return [n for n in self.used if not self.schema[n].complete and n not in known]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes; where only one was found privately, all other values are the second."""
        values = self.schema[self.target].categories or ()
        return with_others(values) if self.one_class_found else values

    @property
    def one_class_found(self) -> bool:
        """Whether only one class of the target was found privately."""
        values = self.schema[self.target].categories or ()
        return self.target in self.found and len(values) == 1

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The values of each sensitive column; of one that was found, with all others as one."""
        known = {name: self.schema[name].categories or () for name in self.sensitive}
        return {n: with_others(v) if n in self.found else v for n, v in known.items()}

    @property
    def training_records(self) -> int | None:
        """How many rows are expected in the training part, if the number of rows is public."""
        rows = self.schema.records
        return rows if rows is None else max(1, round(rows * self.training_share))

    @property
    def training_share(self) -> float:
        """How many of the table's rows are trained on, on average."""
        return 1.0 if self.test is not None else 1 - self.test_fraction

    def usable(self, source: Table) -> tuple[TableRows, LeftOut]:
        """The rows of a table that are used, and the others.

        Raises:
            TableError: If cells are missing, and that is an error.
        """
        needed = [self.target, *self.sensitive] if self.missing == "fill" else self.used
        classes = None
        if self.target in self.found and self.classes and not self.one_class_found:
            classes = self.target, self.schema[self.target].prefix, set(self.classes)
        readers = {name: reader_of(self.schema[name]) for name in (*self.features, self.target)}
        rows, left = usable(
            source,
            needed,
            readers={name: read for name, read in readers.items() if read is not None},
            gaps=set(self.missing_values),
            classes=classes,
        )
        if self.missing == "error":
            require_complete(left, (self.target, *self.sensitive))
        return rows, left

    def parts(self) -> tuple[TableRows, TableRows, RowUse]:
        """The training and the test rows, and how many there are."""
        rows, left = self.usable(self.source)
        if self.test is None:
            train, test = rows.split(self.test_fraction, self.seed)
            parts = left.places, torch.arange(left.total)
            lost, of = (int(is_held_out(one, self.test_fraction, self.seed).sum()) for one in parts)
            held = lost, of
        else:
            train, (test, without) = rows, self.usable(self.test)
            held = len(without.places), without.total
        use = RowUse(left.total, len(left.places), left.columns, left.other, {}, held)
        return train, test, use

    def require_rows(self, train: TableRows, test: TableRows) -> None:
        """Refuses a table that leaves none to train on, or none to evaluate on."""
        if not (len(train) and len(test)):
            raise TableError(
                f"{self.source.title} leaves {len(train)} training and {len(test)} test rows; both "
                "must be there."
            )

    def counts(self) -> Counts:
        """What the training rows hold in the columns that are not declared.

        Raises:
            TableError: If a column of numbers has a word in it, and missing cells are an error.
        """
        with self.telling_all():
            training, held_out, _ = self.parts()
            self.require_rows(training, held_out)
            asked = {name: self.schema[name] for name in self.undeclared}
            if not asked:
                return Counts({}, len(training))
            found = count(training.chunks(), asked, set(self.missing_values))
            for name, column in found.columns.items():
                kind = self.schema[name].kind
                if name == self.target and kind == CATEGORY:
                    require_classes(name, column, said=self.task_said)
                if kind in MEASURED and not column.numbers:
                    what = "date in the order that is declared" if kind == DATE else "number"
                    raise TableError(
                        f"No cell of the column '{name}' is a {what}. Declare what it holds, or "
                        f"leave it out (--drop {name})."
                    )
                if self.missing == "error" and kind is None and 0 < column.words < column.numbers:
                    raise TableError(
                        f"The column '{name}' of {self.source.title} holds numbers, but not in "
                        f"{column.words:,} of its cells. Have them filled (--missing "
                        "fill), leave out such rows (--missing drop) or the column (--drop "
                        f"{name}), or say that it holds categories (--categorical {name})."
                    )
            return found

    def look(self) -> TableLook:
        """All columns, with what stands in the way of each."""
        return look_at(
            self.source.path or self.source,
            form=self.form,
            target=self.target,
            sensitive=self.sensitive,
            schema=self.schema,
            drop=self.drop,
            missing_values=self.missing_values,
        )

    @contextmanager
    def telling_all(self) -> Iterator[None]:
        """If the rows cannot be used, says so of all columns, and not of the first alone."""
        try:
            yield
        except Obstacles:
            raise
        except DataError as error:
            words = ""
            with suppress(DataError):  # a file that cannot be read at all
                words = self.look().in_the_way(complete=self.missing == "error")
            if not words:
                raise
            file = Path(self.source.path).name if self.source.path else ""
            named = str(error) if file in str(error) else f"{file}: {error}"
            raise Obstacles(f"{named}\n{words}") from error

    def taken_from(self, counts: Counts) -> TablePlan:
        """The plan with what is not declared taken from the rows that were counted."""
        with self.telling_all():
            columns = {name: _taken(self, name, column) for name, column in counts.columns.items()}
        return replace(
            self, schema=self.schema.with_columns(columns), taken=frozenset(self.undeclared)
        )


class Obstacles(TableError):
    """A table cannot be used, with all that stands in the way."""


def plan_table(path: TableSource, *, target: str, **options: Unpack[TableOptions]) -> TablePlan:
    """What ``table`` would do with the same options; no row is looked at.

    Raises:
        TableError: If the options do not fit the table's columns, or each other.
        WrongOptions: If there is no option of a name.
    """
    check_options("A table", plan_table, {"path": path, "target": target, **options})
    with own_file():
        return _planned(path, target, options)


@contextmanager
def own_file() -> Iterator[None]:
    """Errors of a person's own file say that they can change it."""
    try:
        yield
    except TableError:
        raise
    except DataError as error:
        raise TableError(str(error)) from error


def _planned(path: TableSource, target: str, asked: TableOptions) -> TablePlan:
    missing, task, given = asked.get("missing", "fill"), asked.get("task"), asked.get("sensitive")
    check_one_of("missing", missing, get_args(Missing))
    if task is not None:
        check_one_of("task", task, get_args(Task))
    sensitive = (given,) if isinstance(given, str) else tuple(given or ())
    schema = declared(**_among(asked, STATED))
    if asked.get("from_data") and schema.records is not None:
        raise TableError(
            "records states the number of rows, and from_data takes it from the rows as they are; "
            "give one of the two."
        )
    form = CsvForm(**_among(asked, (one.name for one in fields(CsvForm))))
    source, drop = open_table(path, form), tuple(asked.get("drop", ()))
    if form.options and (source.path is None or source.path.suffix.lower() != ".csv"):
        raise TableError(f"{', '.join(form.options)} describes a csv file; {source.title} is none.")
    check_names(source, [target, *sensitive, *schema.columns, *drop])
    if target in (*sensitive, *drop):
        raise TableError(f"The target '{target}' cannot be sensitive or dropped as well.")
    if len(set(sensitive)) < len(sensitive):
        raise TableError(f"The sensitive columns are {list(sensitive)}; give each once.")
    features = tuple(name for name in source.names if name != target and name not in drop)
    if not features:
        raise TableError(f"{source.title} has no column to learn from beside '{target}'.")
    # What is said about a column that is dropped is of no use, and does no harm.
    columns = {n: c for n, c in schema.columns.items() if n in (*features, target, *sensitive)}
    for name in sensitive:
        if (kind := schema[name].kind) not in (None, CATEGORY):
            said = "numeric" if kind == NUMBER else f"a {kind}"
            raise TableError(
                f"The column '{name}' is said to be {said}, and it is sensitive: such columns are "
                "categorical. Give its values (categories, --categories)."
            )
        columns[name] = replace(schema[name], kind=CATEGORY)
    found = frozenset(asked.get("found", ()))
    columns[target] = as_target(target, schema[target], task, found=target in found)
    second = None if asked.get("test") is None else open_table(asked["test"], form)
    plan = TablePlan(
        source=source,
        target=target,
        sensitive=sensitive,
        features=features,
        schema=replace(schema, columns=columns),
        found=found,
        drop=drop,
        form=form,
        missing=missing,
        missing_values=tuple(asked.get("missing_values", ("",))),
        test=second,
        test_fraction=asked.get("test_fraction", TEST_FRACTION),
        seed=asked.get("seed", 0),
        task_said=task is not None or schema[target].kind is not None,
    )
    if second is not None:
        check_names(second, plan.used)
    return plan


def _among(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


def check_names(table: Table, names: Sequence[str]) -> None:
    """Refuses names that no column has."""
    for name in names:
        if name not in table.names and not table.has_header:
            raise TableError(f"There is no column of {table.title} called '{name}'. {NO_HEADER}")
        if name not in table.names:
            words = unknown(f"column of {table.title} called", name, table.names)
            raise TableError(f"{words[0].upper()}{words[1:]}")


def _taken(plan: TablePlan, name: str, column: ColumnCounts) -> Column:
    known = plan.schema[name]
    kind = known.kind
    if kind in MEASURED or (kind is None and column.numbers > column.words):
        ends = column.low, column.high
        fill = column.median() if known.fill is None else known.fill
        return replace(known, kind=kind or NUMBER, range=ends, fill=fill)
    use, most = "categorical", MOST_CATEGORIES
    advice = "Hash its values, or leave the column out (--hash, --drop)"
    if name in plan.sensitive:
        use, most, advice = "sensitive", MOST_GROUPS, "Group its values first"
    if name == plan.target:
        advice = "Give a column of classes; of numbers, say --task regression"
        use, most = "the target", MOST_CLASSES
    values = in_class_order(column.categories)
    if len(values) > most:
        raise TableError(
            f"The column '{name}' is {use} and has {len(values):,} different values; at most "
            f"{most} are allowed. {advice}."
        )
    frequent = column.most_frequent() if known.fill is None else known.fill
    return replace(known, kind=CATEGORY, categories=values, fill=frequent)
