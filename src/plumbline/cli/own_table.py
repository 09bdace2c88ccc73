"""A person's own table, as ``plumbline train`` reads it.

``plumbline.data.from_table`` reads; here columns that hold text are recognised as categorical,
names are checked with suggestions, and what cannot work (a target with thousands of values) is
refused before anything is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plumbline.cli.app import WrongUse

if TYPE_CHECKING:
    from torch import Tensor, nn

    from plumbline.data import Split, Splits
    from plumbline.data.table_files import TableFile
    from plumbline.fairness import GroupReport

MOST_CLASSES, MOST_GROUPS, MOST_CATEGORIES = 100, 30, 200
_ENOUGH = 2000  # different values of a column that are told apart

# What Python calls them, and what they are called here.
_OPTIONS = {
    "name it in missing_values=": "name it with --missing-value",
    'with missing="drop"': "with --missing drop",
    "with drop=[...]": "with --drop COLUMN",
    "name it in categorical=; if it is of no use, in drop=": "say --categorical COLUMN; if it is "
    "of no use, --drop COLUMN",
}


@dataclass(frozen=True)
class OwnTable:
    """A table, read.

    Attributes:
        splits: Its training and held-out part.
        sensitive: The columns of the groups; of several, the groups are the intersections.
        found: Columns taken as categorical because they hold text.
        columns: Those that are learned from, in the order of the file.
    """

    splits: Splits
    sensitive: tuple[str, ...]
    found: tuple[str, ...]
    columns: tuple[str, ...]

    def groups(self, part: Split) -> Tensor | None:
        """Each record's group, ``[n]``, by its number among ``group_names``."""
        import torch

        from plumbline.fairness import group_records

        if not self.sensitive:
            return None
        values, names = self._features(part)
        return torch.from_numpy(group_records(values, len(part), names).codes)

    def group_names(self) -> tuple[str, ...]:
        """The groups; one called "all" where there is no sensitive column."""
        from plumbline.fairness import group_records

        part = self.splits.train
        values, names = self._features(part)
        return group_records(values, len(part), names).labels

    def judge(self, model: nn.Module, part: Split) -> GroupReport:
        """A model's metrics on a part, by group."""
        import torch

        from plumbline.fairness import Outcomes, evaluate
        from plumbline.training.without_trace import evaluating

        with evaluating(model), torch.no_grad():
            logits = torch.cat([model(x) for x, _ in part.pieces()])
        outcomes = Outcomes.from_logits(logits, part.y)
        values, names = self._features(part)
        return evaluate(outcomes, sensitive_features=values, names=names)

    def _features(self, part: Split) -> tuple[Any, Any]:
        """The sensitive features and the names of their values, as ``evaluate`` takes them."""
        import numpy as np

        if part.sensitive_features is None:
            return np.zeros(len(part), dtype=int), {0: "all"}
        first = part.sensitive_features.numpy()
        first_names = dict(enumerate(self.splits.groups))
        if len(self.sensitive) == 1:
            return first, first_names
        values, names = {self.sensitive[0]: first}, {self.sensitive[0]: first_names}
        for column in self.sensitive[1:]:
            values[column], names[column] = self._one_hot(part, column)
        return values, names

    def _one_hot(self, part: Split, column: str) -> tuple[Any, dict[int, str]]:
        """A further sensitive column, from its features: -1 where the training part has no such."""
        import torch

        start = f"{column}="
        places = [k for k, name in enumerate(self.splits.features) if name.startswith(start)]
        assert isinstance(part.x, torch.Tensor)
        rows = part.x[:, places]
        codes = torch.where(rows.sum(1) > 0, rows.argmax(1), -1).numpy()
        labels = [self.splits.features[k].removeprefix(start) for k in places]
        return codes, dict(enumerate(labels))


def read_own_table(
    path: Path,
    *,
    target: str,
    sensitive: Sequence[str] = (),
    categorical: Sequence[str] = (),
    drop: Sequence[str] = (),
    missing: Literal["error", "drop"] = "error",
    missing_values: Sequence[str] = ("",),
    test: Path | None = None,
    test_fraction: float = 0.2,
) -> OwnTable:
    """Reads a table.

    Raises:
        WrongUse: For a file that is no table, an unknown column, or one that cannot be used so.
    """
    from plumbline.data import DataError, from_table
    from plumbline.data.table_files import read_table

    try:
        table = read_table(path)
        for column in (target, *sensitive, *categorical, *drop):
            _column(table, column, path)
        _check_together(target, sensitive, drop)
        used = [name for name in table.names if name not in (target, *drop)]
        if not used:
            raise WrongUse(f"{path} has no column beside the target '{target}' to learn from.")
        seen = _look(table, [target, *sensitive, *used], set(missing_values))
        found = tuple(
            name for name in used if name not in (*sensitive, *categorical) and seen[name].words
        )
        _check_sizes(seen, target, sensitive, [*categorical, *found])
        splits = from_table(
            path,
            target=target,
            sensitive=sensitive[0] if sensitive else None,
            categorical=[*categorical, *found, *sensitive[1:]],
            drop=drop,
            missing=missing,
            missing_values=missing_values,
            test=test,
            test_fraction=test_fraction,
        )
    except DataError as error:
        text = str(error)
        for python, here in _OPTIONS.items():
            text = text.replace(python, here)
        raise WrongUse(text) from error
    return OwnTable(splits, tuple(sensitive), found, tuple(used))


def _column(table: TableFile, name: str, path: Path) -> None:
    from plumbline.experiments.recipe import known

    known(f"column of {path.name} called", name, list(table.names))


def _check_together(target: str, sensitive: Sequence[str], drop: Sequence[str]) -> None:
    if target in (*sensitive, *drop):
        raise WrongUse(f"The target '{target}' cannot be sensitive or dropped as well.")
    if len(set(sensitive)) < len(sensitive):
        raise WrongUse("--sensitive has a column more than once; give each once.")
    both = [name for name in sensitive if name in drop]
    if both and len(sensitive) > 1:
        raise WrongUse(
            f"'{both[0]}' is sensitive and dropped; that works with a single sensitive column only."
        )


@dataclass
class _Seen:
    """What a column holds: some of its different values, and some that are no numbers."""

    values: set[str]
    words: set[str]

    @property
    def count(self) -> str:
        """How many different values, in words."""
        return f"{len(self.values):,}" if len(self.values) < _ENOUGH else f"{_ENOUGH:,} or more"


def _look(table: TableFile, names: Sequence[str], absent: set[str]) -> dict[str, _Seen]:
    """Looks at every row of a table once."""
    seen = {name: _Seen(set(), set()) for name in names}
    for chunk in table.chunks():
        for name, one in seen.items():
            new = set(chunk.columns[name]) - absent
            if len(one.values) < _ENOUGH:
                one.values.update(itertools.islice(new, _ENOUGH))
            if len(one.words) < _ENOUGH and not _all_numbers(new):
                one.words.update(cell for cell in new if not _is_number(cell))
    return seen


def _check_sizes(
    seen: Mapping[str, _Seen],
    target: str,
    sensitive: Sequence[str],
    categorical: Sequence[str],
) -> None:
    """Refuses columns with too many values for what they are used as."""
    for name, most, use, advice in (
        (target, MOST_CLASSES, "the target", "Give a column of classes; numbers are not predicted"),
        *((one, MOST_GROUPS, "sensitive", "Group its values first") for one in sensitive),
        *(
            (one, MOST_CATEGORIES, "categorical", f"Leave it out with --drop {one}")
            for one in categorical
        ),
    ):
        one = seen[name]
        if len(one.values) > most:
            raise WrongUse(
                f"The column '{name}' is {use} and has {one.count} different values, such as "
                f"{', '.join(sorted(one.values)[:3])}; at most {most} are allowed. {advice}"
                f"{_nearly_numbers(one)}."
            )
        if name == target and len(one.values) < 2:
            raise WrongUse(f"The target '{name}' has one value only; there is nothing to learn.")


def _nearly_numbers(seen: _Seen) -> str:
    """A hint for a column of numbers in which some word stands for a missing one."""
    if len(seen.words) != 1:
        return ""
    (word,) = seen.words
    return f", or, if {word!r} stands for a missing number, say --missing-value {word!r}"


def _all_numbers(cells: set[str]) -> bool:
    try:
        for cell in cells:
            float(cell)
    except ValueError:
        return False
    return True


def _is_number(cell: str) -> bool:
    return _all_numbers({cell})
