"""The rows of a table as the records of a data set: features, classes and groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plumbline.data.base import Constant, Source, Split, not_covered
from plumbline.data.encoding import Where
from plumbline.data.files import TableError
from plumbline.data.table_cells import cut, places_of
from plumbline.data.table_columns import Categorical, encoder_of
from plumbline.data.table_encoding import FLAG, TableEncoding
from plumbline.data.table_rows import TableRows
from plumbline.data.table_schema import CATEGORY, DATE, HASH, NUMBER, TEXT
from plumbline.data.table_target import numbers_of_target

if TYPE_CHECKING:
    from plumbline.data.table_plan import TablePlan

OTHER = "(other)"


def with_others(values: Sequence[str]) -> tuple[str, ...]:
    """Values, and a name that none of them has for all others together."""
    name = OTHER
    while name in values:
        name = f"({name})"
    return (*values, name)


class Encoder:
    """Everything that turns rows into numbers."""

    def __init__(self, plan: TablePlan) -> None:
        self._plan, schema = plan, plan.schema
        self._groups = plan.groups
        self.groups = _intersections(self._groups)
        coded = [name for name in schema.of_kind(CATEGORY, plan.used) if name != plan.target]
        numeric = schema.of_kind(NUMBER, plan.features)
        self.constants = (
            *_constants("the categories of", coded, plan),
            *_constants("the lowest and highest value of", numeric, plan),
            *_constants("the first and last day of", schema.of_kind(DATE, plan.features), plan),
            *_constants("the hashing of", schema.of_kind(HASH, plan.features), plan),
            *_constants("the hashing of the words of", schema.of_kind(TEXT, plan.features), plan),
            *_constants(
                "the classes of" if schema[plan.target].kind == CATEGORY else "the range of",
                [plan.target],
                plan,
            ),
        )
        self.encoding = TableEncoding(
            target=plan.target,
            classes=plan.classes,
            columns=tuple(encoder_of(name, schema[name]) for name in plan.features),
            missing_values=plan.missing_values,
            flagged=plan.missing == "fill",
            form=plan.form,
            not_covered=not_covered(self.constants),
            target_range=schema[plan.target].range,
        )

    def records(self, rows: TableRows, *, test: bool = False) -> Split:
        """The rows as numbers: x ``[n, features]``, y ``[n]`` and the groups ``[n]``."""
        x = torch.empty(len(rows), len(self.encoding.features))
        y, group = (torch.zeros(len(x), dtype=torch.int64) for _ in range(2))
        start, target, ends = 0, self.encoding.target, self.encoding.target_range
        y = y if ends is None else y.float()
        for chunk in rows.chunks():
            where, these = rows.where(chunk), slice(start, start + len(chunk))
            cells = {
                name: cut(chunk.columns[name], self._plan.schema[name].prefix)
                for name in (target, *self._groups)
            }
            x[these] = self.encoding.encode(chunk)
            if ends is not None:
                y[these] = numbers_of_target(cells[target], ends, test=test)
            elif self._plan.one_class_found:
                y[these] = torch.from_numpy(places_of(cells[target], self.encoding.classes[:-1]))
            else:
                y[these] = self._coded(cells[target], self.encoding.classes, target, where)
            for name, values in self._groups.items():
                if name in self._plan.found:
                    own = torch.from_numpy(places_of(cells[name], values[:-1]))
                else:
                    own = self._coded(cells[name], values, name, where)
                group[these] = group[these] * len(values) + own
            start += len(chunk)
        return Split(x, y, group if self._groups else None)

    def _coded(
        self, cells: Sequence[str], values: Sequence[str], name: str, where: Where
    ) -> Tensor:
        """The place of each cell among the values; refuses another without saying what it is.

        Values that were taken from the rows are not named either.
        """
        coded = torch.from_numpy(places_of(cells, values))
        if bool((others := coded == len(values)).any()):
            some = f": {', '.join(values[:10])}{', ...' if len(values) > 10 else ''}"
            raise TableError(
                f"The column '{name}' has a value in {where(int(others.nonzero()[0]))} that is "
                f"none of its {len(values)}{'' if name in self._plan.taken else some}."
            )
        return coded

    def filled(self, parts: Iterable[Split]) -> dict[str, int]:
        """In how many rows each column was filled, where a feature says so."""
        if not self.encoding.flagged:
            return {}
        places = {name: place for place, name in enumerate(self.encoding.features)}
        flags = {one.name: places[f"{one.name}{FLAG}"] for one in self.encoding.columns}
        x = [part.x for part in parts if isinstance(part.x, Tensor)]
        return {name: sum(int(one[:, k].sum()) for one in x) for name, k in flags.items()}

    def check_declared(self, part: Split) -> None:
        """Refuses declarations that no row agrees with: most likely something is misspelled."""
        others = {
            f"{column.name} (other)": column.name
            for column in self.encoding.columns
            if isinstance(column, Categorical) and column.name not in self._plan.found
        }
        read = {f"{one.name}{FLAG}": one.name for one in self.encoding.columns if one.read}
        for place, feature in enumerate(self.encoding.features):
            if feature in read and bool((part.x[:, place] == 1).all()):  # type: ignore[index]
                raise TableError(
                    f"No row has a number or date in '{read[feature]}' as it is declared. Declare "
                    f"what it holds, or leave it out (--drop {read[feature]})."
                )
            if feature in others and bool((part.x[:, place] == 1).all()):  # type: ignore[index]
                raise TableError(
                    f"No row has one of the categories that are declared for '{others[feature]}'; "
                    "are they spelled as in the table?"
                )


def _intersections(sensitive: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The groups' names: a column's values, or "sex=f & city=Oslo" for several columns."""
    if len(sensitive) == 1:
        return tuple(*sensitive.values())
    named = [[f"{name}={value}" for value in values] for name, values in sensitive.items()]
    return tuple(" & ".join(parts) for parts in itertools.product(*named)) if named else ()


def _constants(what: str, names: Iterable[str], plan: TablePlan) -> list[Constant]:
    """One for the columns of each source."""
    by_source: dict[Source, list[str]] = {"public": [], "private": [], "training": []}
    for name in names:
        source: Source = "training" if name in plan.taken else "public"
        by_source["private" if name in plan.found else source].append(name)
    return [
        Constant(f"{what} {', '.join(listed)}", source)
        for source, listed in by_source.items()
        if listed
    ]
