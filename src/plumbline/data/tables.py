"""A table as a data set: a csv or parquet file, or a DataFrame, with a target and other columns.

How rows become numbers is a ``Schema``: ranges, categories and classes that are declared, or that
``plumbline train`` and ``compare`` find privately. Taken from the training rows as they are, which
``from_data`` asks for, epsilon does not cover them, and the privacy statement says so. The file is
read several times in pieces, so that beside the numbers themselves little is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from plumbline.data.base import Splits, dataset
from plumbline.data.encoding import check_one_of
from plumbline.data.files import DataError, TableError
from plumbline.data.table_counts import ColumnCounts, Counts, count
from plumbline.data.table_encoding import (
    MISSING,
    Missing,
)
from plumbline.data.table_files import NO_HEADER, Table, TableSource, open_table
from plumbline.data.table_records import Encoder
from plumbline.data.table_rows import Rows, require_complete, usable
from plumbline.data.table_schema import CATEGORY, NUMBER, STATED, Column, Kind, Schema, declared
from plumbline.registry import unknown

MOST_CLASSES, MOST_GROUPS, MOST_CATEGORIES = 100, 30, 200
TEST_FRACTION = 0.2


@dataset("table")
def table(
    path: TableSource,
    *,
    target: str,
    sensitive: str | Sequence[str] = (),
    categories: Mapping[str, Sequence[object]] | None = None,
    categorical: Sequence[str] = (),
    ranges: Mapping[str, Sequence[float]] | None = None,
    fills: Mapping[str, float] | None = None,
    numeric: Sequence[str] = (),
    records: int | None = None,
    schema: Schema | str | None = None,
    from_data: bool = False,
    found: Sequence[str] = (),
    noisy_records: bool = False,
    drop: Sequence[str] = (),
    missing: Missing = "error",
    missing_values: Sequence[str] = ("",),
    test: TableSource | None = None,
    test_fraction: float = TEST_FRACTION,
    seed: int = 0,
) -> Splits:
    """A csv or parquet file whose first row names the columns, or a pandas DataFrame.

    A numeric column becomes one feature, its range mapped to [-1, 1] (what lies outside goes to the
    nearer end); a categorical column becomes one feature per category and one for all other cells.
    In x ``[n, features]`` they have the order of the file.

    Args:
        path: The file, ending in ``.csv`` or ``.parquet``; or the DataFrame.
        target: The column to predict: a class.
        sensitive: The column of the group; of several columns, the groups are the intersections.
            They are categorical features too, unless dropped.
        categories: The values of categorical columns, of the target and of the sensitive ones, as
            in ``{"city": ["Oslo", "Rome"]}``.
        categorical: Columns that are categorical, whose categories are not declared.
        ranges: The lowest and highest value of numeric columns.
        fills: What a missing number is taken to be; by default the middle of its range.
        numeric: Columns that are numeric, whose range is not declared.
        records: The number of rows in the table, if it is public knowledge.
        schema: A file, or a ``Schema``, that says the same as these six.
        from_data: Takes what is not declared from the training rows as they are. A column of which
            more than half of the cells are numbers is then numeric.
        found: Columns whose values here were found privately. Rows of a class that was not found
            are left out, and a group that was not found is one of all others.
        noisy_records: Whether ``records`` was found privately.
        drop: Columns to leave out.
        missing: What to do with a row in which a cell is missing, or no number in a numeric column:
            "error"; "drop" leaves it out; "fill" fills features, and leaves rows out that lack the
            target or the group.
        missing_values: What a missing cell says.
        test: A second file or DataFrame with the test rows; without it they are split off.
        test_fraction: The share of the rows to split off, on average: each has a coin of its own.
        seed: Decides which.

    Raises:
        TableError: For a file that is no table, an unknown column, or one that cannot be used so;
            for something that is not declared; and for a missing cell, by row and column.
    """
    asked = dict(locals())
    with _own_file():
        plan = _planned(asked)
        if from_data:
            plan = plan.taken_from(plan.counts())
        if undeclared := plan.undeclared:
            raise TableError(
                f"{plan.source.title} has columns whose categories or range are not declared: "
                f"{', '.join(undeclared)}. Declare them (categories, ranges or a schema); let "
                "plumbline.train or compare find them privately; or take them from the rows as "
                "they are (from_data, --from-data), which epsilon does not cover."
            )
        train, held_out = plan.parts()
        if not (len(train) and len(held_out)):
            raise TableError(
                f"{plan.source.title} leaves {len(train)} training and {len(held_out)} test rows; "
                "both must be there."
            )
        encoder = Encoder(plan)
        splits = Splits(
            plan.source.path.stem if plan.source.path else "own",
            encoder.records(train),
            encoder.records(held_out),
            classes=encoder.encoding.classes,
            groups=encoder.groups,
            constants=encoder.constants,
            features=encoder.encoding.features,
            encoding=encoder.encoding,
        )
        encoder.check_declared(splits.train)
        public = [one.what for one in encoder.constants if one.source == "public"]
        splits.train.public_records = plan.training_records
        splits.train.records_noisy = noisy_records
        splits.train.stated = tuple(public)
        return splits


@contextmanager
def _own_file() -> Iterator[None]:
    """Errors of a person's own file say that they can change it."""
    try:
        yield
    except TableError:
        raise
    except DataError as error:
        raise TableError(str(error)) from error


@dataclass(frozen=True)
class TablePlan:
    """A table as it was described, before any of its rows is looked at.

    Attributes:
        source: The table.
        target, sensitive, found: As of ``table``.
        features: The columns that are learned from, in the order of the file.
        schema: What is known of them, of the target and of the sensitive columns.
        missing, missing_values, test_fraction, seed: As of ``table``.
        test: The test rows' table, if there is one.
        taken: The columns whose schema was taken from the training rows as they are.
    """

    source: Table
    target: str
    sensitive: tuple[str, ...]
    features: tuple[str, ...]
    schema: Schema
    found: frozenset[str]
    missing: Missing
    missing_values: tuple[str, ...]
    test: Table | None
    test_fraction: float
    seed: int
    taken: frozenset[str] = frozenset()

    @property
    def used(self) -> list[str]:
        """All columns that are looked at, in the order of the file."""
        wanted = {*self.features, *self.sensitive, self.target}
        return [name for name in self.source.names if name in wanted]

    @property
    def undeclared(self) -> list[str]:
        """The columns that the schema does not say enough about."""
        return [name for name in self.used if not self.schema[name].complete]

    @property
    def training_records(self) -> int | None:
        """How many rows are expected in the training part, if the number of rows is public."""
        rows = self.schema.records
        return rows if rows is None else max(1, round(rows * self.training_share))

    @property
    def training_share(self) -> float:
        """How many of the table's rows are trained on, on average."""
        return 1.0 if self.test is not None else 1 - self.test_fraction

    @cached_property
    def _numeric(self) -> set[str]:
        return set(self.schema.of_kind(NUMBER, self.features))

    def usable(self, source: Table) -> Rows:
        """The rows of a table that are used.

        Raises:
            TableError: If cells are missing, and that is an error.
        """
        needed = [self.target, *self.sensitive] if self.missing == "fill" else self.used
        classes = None
        if self.target in self.found:
            classes = self.target, set(self.schema[self.target].categories or ())
        rows, gaps = usable(
            source,
            needed,
            numeric=self._numeric,
            gaps=set(self.missing_values),
            classes=classes,
        )
        if self.missing == "error":
            require_complete(gaps, (self.target, *self.sensitive))
        return rows

    def parts(self) -> tuple[Rows, Rows]:
        """The training and the test rows."""
        rows = self.usable(self.source)
        if self.test is None:
            return rows.split(self.test_fraction, self.seed)
        return rows, self.usable(self.test)

    def counts(self) -> Counts:
        """What the training rows hold in the columns that are not declared.

        Raises:
            TableError: If a column of numbers has a word in it, and missing cells are an error.
        """
        if not self.undeclared:
            return Counts({}, len(self.parts()[0]))
        training = self.parts()[0]
        found = count(training.chunks(), self.undeclared, set(self.missing_values))
        for name, column in found.columns.items():
            kind = self.schema[name].kind
            if self.missing == "error" and kind is None and 0 < column.words < column.numbers:
                raise TableError(
                    f"The column '{name}' of {self.source.title} holds numbers, but "
                    f"{column.words:,} of its cells are none. If they stand for missing values, "
                    "say so (missing_values, --missing-value) and leave their rows out or fill "
                    "them (--missing drop or "
                    "--missing fill); if the column is categorical, name it in categorical "
                    "(--categorical); if it is of no use, in drop (--drop)."
                )
        return found

    def taken_from(self, counts: Counts) -> TablePlan:
        """The plan with what is not declared taken from the rows that were counted."""
        columns = {name: _taken(self, name, column) for name, column in counts.columns.items()}
        return replace(
            self, schema=self.schema.with_columns(columns), taken=frozenset(self.undeclared)
        )


def plan_table(path: TableSource, **options: Any) -> TablePlan:
    """What ``table`` would do with these options of its own; no row is looked at.

    Raises:
        TableError: If the options do not fit the table's columns, or each other.
    """
    with _own_file():
        defaults = {name: value for name, value in (table.__kwdefaults__ or {}).items()}
        return _planned({"path": path, **defaults, **options})


def described(path: TableSource, *, from_data: bool = False) -> Schema:
    """A schema of all columns to be filled in; on request with what the rows hold, as it is.

    The kind of a column is that of most of its cells.
    """
    with _own_file():
        source = open_table(path)
        counts = count(source.chunks(), source.names, {""})
    found: dict[str, Column] = {}
    for name, column in counts.columns.items():
        kind: Kind = NUMBER if column.numbers > column.words else CATEGORY
        found[name] = Column(kind)
        if from_data and kind == NUMBER:
            found[name] = Column(kind, (column.low, column.high), column.median())
        elif from_data and len(column.categories) <= MOST_CATEGORIES:
            found[name] = Column(kind, categories=tuple(sorted(column.categories)))
    return Schema(found, counts.rows if from_data else None)


def _planned(asked: Mapping[str, Any]) -> TablePlan:
    check_one_of("missing", asked["missing"], MISSING)
    given, target = asked["sensitive"], asked["target"]
    sensitive = (given,) if isinstance(given, str) else tuple(given or ())
    schema = declared(**{name: asked[name] for name in STATED})
    if asked["from_data"] and schema.records is not None:
        raise TableError(
            "records states the number of rows, and from_data takes it from the rows as they are; "
            "give one of the two."
        )
    source = open_table(asked["path"])
    drop = asked["drop"]
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
    for name in (target, *sensitive):
        if schema[name].kind == NUMBER:
            raise TableError(
                f"The column '{name}' is said to be numeric, and it is the target or sensitive: "
                "these are categorical. Give its values (categories, --categories)."
            )
        columns[name] = replace(schema[name], kind=CATEGORY)
    classes = columns[target].categories
    if classes is not None and len(classes) < 2:
        raise TableError(f"The target '{target}' has one value only; there is nothing to learn.")
    second = None if asked["test"] is None else open_table(asked["test"])
    plan = TablePlan(
        source=source,
        target=target,
        sensitive=sensitive,
        features=features,
        schema=replace(schema, columns=columns),
        found=frozenset(asked["found"]),
        missing=asked["missing"],
        missing_values=tuple(asked["missing_values"]),
        test=second,
        test_fraction=asked["test_fraction"],
        seed=asked["seed"],
    )
    if second is not None:
        check_names(second, plan.used)
    return plan


def check_names(table: Table, names: Sequence[str]) -> None:
    """Refuses names that no column has."""
    for name in names:
        if name not in table.names and not table.has_header:
            raise TableError(f"There is no column of {table.title} called '{name}'. {NO_HEADER}")
        if name not in table.names:
            words = unknown(f"column of {table.title} called", name, table.names)
            raise TableError(f"{words[0].upper()}{words[1:]}")


def _taken(plan: TablePlan, name: str, column: ColumnCounts) -> Column:
    kind = plan.schema[name].kind
    if kind == NUMBER or (kind is None and column.numbers > column.words):
        if not column.numbers:
            raise TableError(f"The column '{name}' has no number; leave it out (--drop {name}).")
        fill = plan.schema[name].fill
        ends = column.low, column.high
        return Column(NUMBER, ends, column.median() if fill is None else fill)
    use, most, advice = "categorical", MOST_CATEGORIES, f"Leave it out (drop, --drop {name})"
    if name in plan.sensitive:
        use, most, advice = "sensitive", MOST_GROUPS, "Group its values first"
    if name == plan.target:
        advice = "Give a column of classes; numbers are not predicted"
        use, most = "the target", MOST_CLASSES
    values = tuple(sorted(column.categories))
    if len(values) > most:
        raise TableError(
            f"The column '{name}' is {use} and has {len(values):,} different values; at most "
            f"{most} are allowed. {advice}."
        )
    if name == plan.target and len(values) < 2:
        raise TableError(f"The target '{name}' has one value only; there is nothing to learn.")
    return Column(CATEGORY, categories=values)
