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
from plumbline.data.table_encoding import Categorical, Numeric, TableEncoding, codes_or_other
from plumbline.data.table_rows import Rows
from plumbline.data.table_schema import CATEGORY, NUMBER, Column

if TYPE_CHECKING:
    from plumbline.data.tables import TablePlan

OTHER = "(other)"


class Encoder:
    """Everything that turns rows into numbers."""

    def __init__(self, plan: TablePlan) -> None:
        self._plan, schema = plan, plan.schema
        # Of a sensitive column that was found, other values are a group of their own.
        self._groups = {
            name: [*(schema[name].categories or ()), *([OTHER] if name in plan.found else [])]
            for name in plan.sensitive
        }
        self.groups = _intersections(self._groups)
        coded = [name for name in schema.of_kind(CATEGORY, plan.used) if name != plan.target]
        numeric = schema.of_kind(NUMBER, plan.features)
        self.constants = (
            *_constants("the categories of", coded, plan),
            *_constants("the lowest and highest value of", numeric, plan),
            *_constants("the classes of", [plan.target], plan),
        )
        self.encoding = TableEncoding(
            target=plan.target,
            classes=schema[plan.target].categories or (),
            columns=tuple(_encoded(name, schema[name]) for name in plan.features),
            missing_values=plan.missing_values,
            not_covered=not_covered(self.constants),
        )

    def records(self, rows: Rows) -> Split:
        """The rows as numbers: x ``[n, features]``, y ``[n]`` and the groups ``[n]``."""
        x = torch.empty(len(rows), len(self.encoding.features))
        y, group = torch.zeros(2, len(x), dtype=torch.int64)
        start, target = 0, self.encoding.target
        for chunk in rows.chunks():
            cells, where, these = chunk.columns, rows.where(chunk), slice(start, start + len(chunk))
            x[these] = self.encoding.encode(chunk)
            y[these] = _coded(cells[target], self.encoding.classes, target, where)
            for name, values in self._groups.items():
                if name in self._plan.found:
                    own = codes_or_other(cells[name], values[:-1])
                else:
                    own = _coded(cells[name], values, name, where)
                group[these] = group[these] * len(values) + own
            start += len(chunk)
        return Split(x, y, group if self._groups else None)

    def check_declared(self, part: Split) -> None:
        """Refuses declared categories that no row has: most likely they are spelled differently."""
        end = 0
        for column in self.encoding.columns:
            end += len(column.features)
            stated = isinstance(column, Categorical) and column.name not in self._plan.found
            if stated and bool((part.x[:, end - 1] == 1).all()):  # type: ignore[index]
                raise TableError(
                    f"No row has one of the categories that are declared for '{column.name}'; are "
                    "they spelled as in the table?"
                )


def _coded(cells: Sequence[str], values: Sequence[str], name: str, where: Where) -> Tensor:
    """The place of each cell among the values; refuses another without saying what it is."""
    coded = codes_or_other(cells, values)
    if bool((others := coded == len(values)).any()):
        raise TableError(
            f"The column '{name}' has a value in {where(int(others.nonzero()[0]))} that is none of "
            f"its {len(values)}: {', '.join(values[:10])}{', ...' if len(values) > 10 else ''}."
        )
    return coded


def _encoded(name: str, column: Column) -> Numeric | Categorical:
    if column.kind == NUMBER and column.range is not None:
        low, high = column.range
        return Numeric(name, low, high, (low + high) / 2 if column.fill is None else column.fill)
    return Categorical(name, column.categories or ())


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
