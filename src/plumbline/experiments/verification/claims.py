"""What a run's folder claims: its settings, its plan and its result, read and not believed.

``verify`` compares these with the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.experiments.files import RESULT, FileError, read_json
from plumbline.experiments.recipe import BudgetPart, RecipeError
from plumbline.experiments.run_spec import RunSpec, budget_of, read_spec
from plumbline.mechanism.calibration import Plan


@dataclass(frozen=True)
class RunClaim:
    """What a folder says was run.

    Attributes:
        folder: The folder.
        spec: What was run.
        result: The result as it is stored; None while the run is not finished.
    """

    folder: Path
    spec: RunSpec
    result: dict[str, Any] | None

    @property
    def budget(self) -> BudgetPart:
        """At which delta, by whom computed, and what is protected."""
        return self.spec.recipe.budget

    @property
    def expected_batch_size(self) -> int | None:
        """The mean size of a batch; None where the sampling rate is given in its place."""
        return self.spec.method.expected_batch_size or self.budget.expected_batch_size

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the result states; None without a result."""
        return None if self.result is None else float(self.result["epsilon"])

    def records(self, rate: float) -> int | None:
        """The number of records that makes ``rate`` the sampling rate; None if no number does.

        Where noise is correlated, that within a part of the records.
        Where the rate itself is given any number does, and the public one is returned if there is
        one.
        """
        parts = self.spec.method.parts
        if self.expected_batch_size is None:
            asked = parts * (self.budget.sampling_rate or 0.0)
            fits = rate == asked if parts == 1 else math.isclose(rate, asked, rel_tol=1e-12)
            return (self.spec.public_records or 1) if fits else None
        of_part = parts * self.expected_batch_size
        count = max(1, round(of_part / rate))
        return count if of_part / count == rate else None

    def plan(self, records: int) -> Plan:
        """What the settings ask for on so many records.

        Raises:
            ValueError: If they cannot be met.
        """
        settings = {} if self.result is None else self.result["settings"]
        row = self.spec.method
        method = row.model_copy(update={"settings": {**row.settings, **settings}}).build()
        return budget_of(self.spec, method, records).resolve(
            records,
            release_at=method.release,
            accountant=self.budget.accountant,
            relation=self.budget.relation,
            before=self.spec.before,
            parts=self.spec.method.parts,
        )


def read_claim(folder: Path) -> RunClaim:
    """Reads what a run's folder claims.

    Raises:
        FileError: If the folder is no run's, or one of its files is damaged; names the file.
    """
    stored = read_json(folder / RESULT) if (folder / RESULT).is_file() else None
    if stored is not None:
        _check_result(folder / RESULT, stored)
    try:
        spec = read_spec(folder)
    except RecipeError as error:
        raise FileError(str(error)) from error
    return RunClaim(folder, spec, stored)


def _check_result(path: Path, stored: dict[str, Any]) -> None:
    wanted: dict[str, Callable[[Any], bool]] = {
        "epsilon": lambda value: value == "inf" or _is_number(value),
        "steps": lambda value: type(value) is int,
        "statement": lambda value: isinstance(value, str),
        "report": _is_report,
        "settings": lambda value: isinstance(value, dict),
        "model": lambda value: isinstance(value, dict),
    }
    for name, fits in wanted.items():
        if name not in stored or not fits(stored[name]):
            raise FileError(f"{path} is damaged: {name} is {_short(stored.get(name))}.")


def _is_report(value: Any) -> bool:
    """Metrics by name, overall and by group, and the size of every group."""
    match value:
        case {"overall": dict(overall), "by_group": dict(groups), "sizes": dict(sizes)}:
            rows = [overall, *groups.values()]
            return (
                sizes.keys() == groups.keys()
                and all(type(size) is int and size >= 0 for size in sizes.values())
                and all(isinstance(row, dict) and row.keys() == overall.keys() for row in rows)
                and all(
                    _is_number(cell) or isinstance(cell, str) for r in rows for cell in r.values()
                )
            )
    return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:80]}..."


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
