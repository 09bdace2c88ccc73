"""A table as a data set: a csv or parquet file, or a DataFrame, with a target and other columns.

How rows become numbers is a ``Schema``: ranges, categories and classes that are declared, or that
``plumbline train`` and ``compare`` find privately. Taken from the training rows as they are, which
``from_data`` asks for, epsilon does not cover them, and the privacy statement says so. The file is
read several times in pieces, so that beside the numbers themselves little is in memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from plumbline.data.base import Splits, dataset
from plumbline.data.csv_files import CsvForm
from plumbline.data.files import TableError
from plumbline.data.table_counts import count
from plumbline.data.table_files import TableSource, open_table
from plumbline.data.table_look import look_at
from plumbline.data.table_options import TableOptions
from plumbline.data.table_plan import own_file, plan_table
from plumbline.data.table_records import Encoder
from plumbline.data.table_schema import MEASURED, MOST_CATEGORIES, Schema
from plumbline.data.table_target import in_class_order


@dataset("table")
def table(path: TableSource, *, target: str, **options: Unpack[TableOptions]) -> Splits:
    """A csv or parquet file whose first row names the columns, or a pandas DataFrame.

    A numeric column becomes one feature, its range mapped to [-1, 1] (what lies outside goes to the
    nearer end); a categorical column becomes one feature per category and one for all other cells;
    of dates, codes and text, see ``data.table_columns``. In x ``[n, features]`` they have the order
    of the file.

    Args:
        path: The file, ending in ``.csv`` or ``.parquet``; or the DataFrame.
        target: The column to predict: a class, or a number.
        options: What else is said about it, as ``TableOptions`` lists it.

    Raises:
        TableError: For a file that is no table, an unknown column, or one that cannot be used so;
            for something that is not declared; and for a missing cell, by row and column.
        WrongOptions: If there is no option of a name.
    """
    plan = plan_table(path, target=target, **options)
    with own_file():
        if options.get("from_data"):
            plan = plan.taken_from(plan.counts())
        if undeclared := plan.undeclared:
            raise TableError(
                f"{plan.source.title} has columns whose categories or range are not declared: "
                f"{', '.join(undeclared)}. Declare them (categories, ranges or a schema); let "
                "plumbline.train or compare find them privately; or take them from the rows as "
                "they are (from_data, --from-data), which epsilon does not cover."
            )
    with own_file(), plan.telling_all():
        train, held_out, use = plan.parts()
        plan.require_rows(train, held_out)
        encoder = Encoder(plan)
        both = encoder.records(train), encoder.records(held_out, test=True)
        splits = Splits(
            plan.source.path.stem if plan.source.path else "own",
            *both,
            classes=encoder.encoding.classes,
            groups=encoder.groups,
            constants=encoder.constants,
            features=encoder.encoding.features,
            encoding=encoder.encoding,
            use=replace(use, filled=encoder.filled(both)),
            target_range=encoder.encoding.target_range,
        )
        encoder.check_declared(splits.train)
        public = [one.what for one in encoder.constants if one.source == "public"]
        splits.train.places = train.places
        splits.train.public_records = plan.training_records
        splits.train.records_noisy = options.get("noisy_records", False)
        splits.train.stated = tuple(public)
        return splits


def described(path: TableSource, *, from_data: bool = False, form: CsvForm | None = None) -> Schema:
    """A schema of all columns to be filled in; on request with what the rows hold, as it is.

    The kinds are those that a look at the rows proposes.
    """
    with own_file():
        found = dict(look_at(path, form=form).schema.columns)
        if not from_data:
            return Schema(found)
        asked = {name: column for name, column in found.items() if not column.complete}
        counts = count(open_table(path, form).chunks(), asked, {""})
    for name, column in counts.columns.items():
        known = found[name]
        if known.kind in MEASURED:
            found[name] = replace(known, range=(column.low, column.high), fill=column.median())
        elif len(column.categories) <= MOST_CATEGORIES:
            found[name] = replace(known, categories=in_class_order(column.categories))
    return Schema(found, counts.rows)
