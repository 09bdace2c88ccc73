"""What a run's folder claims: its settings, its plan and its result, read and not believed.

A folder is that of a run of a recipe (``recipe.json``) or of a table of one's own
(``settings.json``); both claim the same things, and ``verify`` compares these with the ledger.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from plumbline.experiments.files import RECIPE, RESULT, SETTINGS, FileError, read_json
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.run_spec import RunSpec, budget_of, read_spec
from plumbline.mechanism.accountant import Accountant, Relation
from plumbline.mechanism.calibration import Budget, Plan
from plumbline.mechanism.release import Sampling, StepRelease
from plumbline.methods import METHODS, Method


@dataclass(frozen=True)
class RunClaim:
    """What a folder says was run.

    Attributes:
        folder: The folder.
        name: The method and the seed, for people.
        seeded: Whether a seed decided batches and noise.
        delta: Of the guarantee.
        accountant: Who computed epsilon.
        relation: What is protected.
        expected_batch_size: The mean size of a batch.
        spec: What was run, of a run of a recipe.
        settings: All settings as plain values.
        result: The result as it is stored; None while the run is not finished.
    """

    folder: Path
    name: str
    seeded: bool
    delta: float
    accountant: Accountant
    relation: Relation
    expected_batch_size: int
    spec: RunSpec | None
    settings: dict[str, Any]
    result: dict[str, Any] | None

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the result states; None without a result."""
        return None if self.result is None else float(self.result["epsilon"])

    @property
    def before(self) -> tuple[StepRelease, ...]:
        """What the settings ask of the records before the first step."""
        return () if self.spec is None else self.spec.before

    def records(self, rate: float) -> int | None:
        """The number of records that makes ``rate`` the sampling rate; None if no number does."""
        count = max(1, round(self.expected_batch_size / rate))
        return count if self.expected_batch_size / count == rate else None

    def plan(self, records: int) -> Plan:
        """What the settings ask for on so many records.

        Raises:
            ValueError: If they cannot be met.
        """
        method = self._method()

        def release_at(noise_multiplier: float, sampling: Sampling) -> StepRelease:
            return StepRelease(
                sampling=sampling,
                queries=method.queries(noise_multiplier),
                unbounded_reason=method.unbounded_reason,
                composition=method.composition,
            )

        return self._budget(method, records).resolve(
            records,
            release_at=release_at,
            accountant=self.accountant,
            relation=self.relation,
            before=self.before,
        )

    def _method(self) -> Method:
        if self.spec is not None:
            return self.spec.method.build()
        make, given = METHODS[self.settings["method"]].make, dict(self.settings["method_settings"])
        if "groups" in inspect.signature(make).parameters and "groups" not in given:
            named = (self.result or {}).get("report", {}).get("by_group", ())
            given["groups"] = tuple(range(len(named)))
        return make(**given)

    def _budget(self, method: Method, records: int) -> Budget:
        if self.spec is not None:
            return budget_of(self.spec, method, records)
        names = ("epsilon", "delta", "epochs", "expected_batch_size")
        budget = Budget(**{name: self.settings[name] for name in names})
        if method.unbounded_reason is None:
            return budget
        noise = budget.resolve(records, accountant=self.accountant).noise_multiplier
        return replace(budget, epsilon=None, noise_multiplier=noise)


def read_claim(folder: Path) -> RunClaim:
    """Reads what a run's folder claims.

    Raises:
        FileError: If the folder is no run's, or one of its files is damaged; names the file.
    """
    stored = read_json(folder / RESULT) if (folder / RESULT).is_file() else None
    if stored is not None:
        _check_result(folder / RESULT, stored)
    if (folder / SETTINGS).is_file():
        return _own(folder, stored)
    if not (folder / RECIPE).is_file():
        raise FileError(
            f"{folder} is not the folder of a run: it has neither {RECIPE} nor {SETTINGS}. "
            "`plumbline train` and `plumbline compare` make such folders."
        )
    try:
        spec = read_spec(folder)
    except RecipeError as error:
        raise FileError(str(error)) from error
    budget = spec.recipe.budget
    return RunClaim(
        folder=folder,
        name=spec.name,
        seeded=spec.noise_seed is not None,
        delta=budget.delta,
        accountant=budget.accountant,
        relation=budget.relation,
        expected_batch_size=spec.method.expected_batch_size or budget.expected_batch_size,
        spec=spec,
        settings=spec.facts,
        result=stored,
    )


def is_run(folder: Path) -> bool:
    """Whether a folder is that of one run."""
    if (folder / SETTINGS).is_file():
        return True
    path = folder / RECIPE
    return path.is_file() and "methods" not in read_json(path)


def _own(folder: Path, stored: dict[str, Any] | None) -> RunClaim:
    """The claim of a run on a person's own table."""
    path = folder / SETTINGS
    settings = read_json(path)
    wanted: dict[str, Callable[[Any], bool]] = {
        "method": lambda value: value in METHODS,
        "method_settings": lambda value: isinstance(value, dict),
        "records": _is_count,
        "expected_batch_size": _is_count,
        "epsilon": _is_number,
        "delta": lambda value: _is_number(value) and 0 < value < 1,
        "epochs": _is_number,
        "accountant": lambda value: value in get_args(Accountant),
        "seed": lambda value: value is None or type(value) is int,
    }
    for name, fits in wanted.items():
        if name not in settings or not fits(settings[name]):
            raise FileError(f"{path} is damaged: {name} is {settings.get(name)!r}.")
    seed = settings["seed"]
    return RunClaim(
        folder=folder,
        name=settings["method"] + ("" if seed is None else f", seed {seed}"),
        seeded=seed is not None,
        delta=settings["delta"],
        accountant=settings["accountant"],
        relation="add_remove",
        expected_batch_size=settings["expected_batch_size"],
        spec=None,
        settings=settings,
        result=stored,
    )


def _check_result(path: Path, stored: dict[str, Any]) -> None:
    wanted: dict[str, Callable[[Any], bool]] = {
        "epsilon": lambda value: value == "inf" or _is_number(value),
        "steps": lambda value: type(value) is int,
        "statement": lambda value: isinstance(value, str),
        "report": _is_report,
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
                and all(map(_is_size, sizes.values()))
                and all(isinstance(row, dict) and row.keys() == overall.keys() for row in rows)
                and all(
                    _is_number(cell) or isinstance(cell, str) for r in rows for cell in r.values()
                )
            )
    return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:80]}..."


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1
