"""One look at a table: what each column was taken for, what is wrong with it, and what to do.

It is for whoever holds the table, and what it finds is not for release: no epsilon covers it.
Nothing that trains uses it. Whoever follows its advice declares something, as they would have
without it.

The file is read once, and of a column with many different cells only some thousand are kept.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from plumbline.data.csv_files import CsvForm, read_csv
from plumbline.data.files import TableError, not_utf8, reading
from plumbline.data.numbers import numbers_of
from plumbline.data.table_files import (
    CELLS,
    NO_HEADER,
    Table,
    TableSource,
    existing,
    open_table,
)
from plumbline.data.table_schema import CATEGORY, MOST_CLASSES, NUMBER, Column, Schema
from plumbline.data.table_tally import ColumnTally, Tally, as_groups, as_target
from plumbline.registry import unknown


@dataclass(frozen=True)
class TableLook:
    """A table as it was seen.

    Attributes:
        path: Its file, if it has one.
        rows: How many rows were read.
        columns: Its columns, in the order of the file.
        problems: What is wrong with the file as a whole.
        options: What says so on the command line.
        given: How the file was read, as on the command line.
        target, sensitive, drop, missing_values: As they were given.
        classes: How many rows each class has, if there are few.
        stuck: Whether something is wrong that no option mends.
    """

    path: Path | None
    rows: int
    columns: tuple[ColumnTally, ...]
    problems: tuple[str, ...]
    options: Mapping[str, str]
    given: Mapping[str, str]
    target: str | None
    sensitive: tuple[str, ...]
    drop: tuple[str, ...]
    missing_values: tuple[str, ...]
    classes: Mapping[str, int]
    stuck: bool

    @property
    def schema(self) -> Schema:
        """The columns as they would be declared."""
        return Schema({one.name: one.column for one in self.columns})

    def in_the_way(self, *, complete: bool = False) -> str:
        """All that stands in the way, a line each, and the options that help.

        Args:
            complete: Whether a missing cell does.
        """
        lines = list(self.problems)
        for one in self.columns:
            if one.wrong and not one.remark:
                lines.append(f"{one.name}: {one.wrong}. {one.advice}")
            elif complete and one.missing:
                cells = "cell is" if one.missing == 1 else "cells are"
                lines.append(f"{one.name}: {one.missing:,} {cells} missing.")
        if NO_HEADER in self.problems:
            return f"All that stands in the way:\n- {NO_HEADER}"  # the names are a record's cells
        if not lines:
            return ""
        listed = "\n".join(f"- {line}" for line in lines)
        added = _words(
            self.options.items(), (one for one in self.columns if one.wrong and not one.remark)
        )
        more = f"\nAdd to the command: {shlex.join(added)}" if added else ""
        return f"All that stands in the way:\n{listed}{more}"

    @property
    def command(self) -> str:
        """The command that trains on the table, with an option for each obstacle that has one."""
        words = ["plumbline", "train", "--data", str(self.path)]
        words += ["--target", self.target or "COLUMN"]
        for name in self.sensitive:
            words += ["--sensitive", name]
        told = [*self.options.items(), *self.given.items()]
        told += [("--missing-value", cell) for cell in self.missing_values if cell]
        told += [("--drop", name) for name in self.drop]
        return shlex.join([*words, *_words(told, self.columns)])


def look_at(
    source: TableSource,
    *,
    form: CsvForm | None = None,
    target: str | None = None,
    sensitive: Sequence[str] = (),
    schema: Schema | None = None,
    drop: Sequence[str] = (),
    missing_values: Sequence[str] = ("",),
) -> TableLook:
    """Looks at all columns of a table but those that are dropped.

    Args:
        source: A csv or parquet file, a DataFrame, or an opened table.
        form: Of a csv file.
        target: The column that is to be predicted, if that is known.
        sensitive: The columns of the groups.
        schema: What is declared already.
        drop: Columns that are left out.
        missing_values: What a missing cell says.

    Raises:
        DataError: If the file cannot be read at all.
    """
    known, ragged = schema or Schema(), list[int]()
    if target is not None and known[target].kind == CATEGORY and not known[target].complete:
        known = known.with_columns({target: Column()})  # look whether it holds amounts
    gaps = set(missing_values)
    form = form or CsvForm()
    path = existing(source) if isinstance(source, str | Path) else None
    problems: list[str] = []
    options: dict[str, str] = {}
    if path is not None and path.suffix.lower() == ".csv":
        try:
            tallies, rows = _tallied(_pieces(path, form, ragged), known, gaps)
        except UnicodeDecodeError:
            line, encoding = not_utf8(path)
            problems.append(
                f"The file is not UTF-8 (line {line:,}); it looks like {encoding}: --encoding "
                f"{encoding}."
            )
            options["--encoding"] = encoding
            ragged.clear()
            form = replace(form, encoding=encoding)
            tallies, rows = _tallied(_pieces(path, form, ragged), known, gaps)
    else:
        table = source if isinstance(source, Table) else open_table(source)
        tallies, rows = _tallied((chunk.columns for chunk in table.chunks()), known, gaps)
    if not rows and not ragged:
        raise TableError(f"{path or 'The table'} has no rows.")
    if ragged:
        places = ", ".join(f"{place + 1:,}" for place in ragged[:5])
        problems.append(
            f"{len(ragged):,} rows have more or fewer cells than the header (row {places}"
            f"{', ...' if len(ragged) > 5 else ''}): mend them, or say how cells are separated "
            "(--separator)."
        )
    names = list(tallies)
    if bare := any(not np.isnan(number) for number in numbers_of(names)):
        problems.append(NO_HEADER)
    for name in (*([] if target is None else [target]), *sensitive, *drop):
        if name not in names:
            words = NO_HEADER if bare else f"{unknown('column called', name, names)}"
            raise TableError(words[0].upper() + words[1:])
    columns = []
    for name, tally in tallies.items():
        if name in drop or not rows:
            continue
        seen = tally.seen()
        if name == target and known[name].kind != NUMBER:
            seen = as_target(seen)
        elif name in sensitive:
            seen = as_groups(seen, tally.values)
        columns.append(seen)
    given = {f"--{option}": value for option, value in form.options.items()}
    given = {k: v for k, v in given.items() if k not in options}
    classes = tallies[target].values if target is not None else None
    few = classes is not None and len(classes) <= MOST_CLASSES
    return TableLook(
        path, rows, tuple(columns), tuple(problems), options, given, target, tuple(sensitive),
        tuple(drop), tuple(missing_values),
        dict((classes or Counter()).most_common()) if few else {},
        bool(ragged) or bare or any(c.wrong and not (c.remark or c.options) for c in columns),
    )  # fmt: skip


def _pieces(path: Path, form: CsvForm, ragged: list[int]) -> Iterator[dict[str, list[str]]]:
    try:
        width = len(next(read_csv(path, 1, form, ragged), {})) or 1
        ragged.clear()
        yield from read_csv(path, max(1, CELLS // width), form, ragged)
    except UnicodeDecodeError:
        if form.encoding == "utf-8":
            raise
        with reading(None, path):
            raise
    except OSError:
        with reading(None, path):
            raise


def _tallied(
    pieces: Iterable[Mapping[str, list[str]]], known: Schema, gaps: set[str]
) -> tuple[dict[str, Tally], int]:
    tallies: dict[str, Tally] = {}
    rows = 0
    for piece in pieces:
        for name, cells in piece.items():
            if name not in tallies:
                tallies[name] = Tally(name, known[name], gaps)
            tallies[name].add(cells)
        rows += len(cells)
    return tallies, rows


def _words(options: Iterable[tuple[str, str]], columns: Iterable[ColumnTally]) -> list[str]:
    """Options of the file and of columns, as the words of a command."""
    words = list[str]()
    lists: dict[str, list[str]] = {"--categorical": [], "--drop": []}
    pairs = [*options, *(pair for one in columns for pair in one.options)]
    for option, value in dict.fromkeys(pairs):  # of several columns, each once
        if option in lists:
            lists[option].append(_quoted(value))
        else:
            words += [option, value]
    for option, names in lists.items():
        words += [option, ",".join(names)] if names else []
    return words


def _quoted(name: str) -> str:
    return f'"{name}"' if "," in name else name
